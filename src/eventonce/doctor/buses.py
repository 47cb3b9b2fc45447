"""The checks of the buses: EventBridge's rules and their targets, and what the queue admits."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Any, Final

from eventonce.core.ports import Finding
from eventonce.doctor.facts import BusTarget, Facts, FileFacts, QueueFacts
from eventonce.doctor.patterns import Pattern, overlap, shared_type
from eventonce.infra.topology import PARTNER

RETRIED: Final = 86_400
"""Seconds for which EventBridge tries to deliver an event, and the times it tries."""
RETRIES: Final = 185

AWS_KEY: Final = "alias/aws/sqs"
"""The key that AWS manages for SQS, whose policy nobody can change."""

WHOLE_EVENT: Final = ("<aws.events.event>", "<aws.events.event.json>")
"""The variables of an input transformer that stand for the whole event."""


def retried(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Each target: whether it delivers, how long it tries, and what becomes of the rest."""
    for one in facts.targets:
        if not one.enabled:
            yield Finding(
                f"the {one} is disabled",
                f"enable it (aws events enable-rule --name {one.rule} --event-bus-name {one.bus}), "
                f"or delete it: no event comes by it",
            )
        weak = one.age < RETRIED or one.retries < RETRIES
        yield Finding(
            f"the {one} tries {one.retries} times within {one.age} s",
            f"remove the target's RetryPolicy, or set it to {RETRIES} times and {RETRIED} s: an "
            f"event is given up sooner than EventBridge can do"
            if weak
            else "",
        )
        yield Finding(
            f"the {one} keeps undelivered events"
            if one.dead
            else f"the {one} drops events that it could not deliver",
            ""
            if one.dead
            else "give the target a DeadLetterConfig with a standard queue: after its last retry "
            "an event is lost",
        )


def admitted(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """The queue's policy against each rule that sends to it."""
    queue = facts.queue
    for one in facts.targets:
        if queue is None or one.to != queue.arn:
            continue
        if one.role:
            yield Finding(
                f"whether the {one} may send: it does so as {one.role}, whose rights were not "
                f"looked at",
                unchecked=True,
            )
            continue
        may = _may_send(queue, one.arn)
        yield Finding(
            f"the queue's policy {'lets' if may else 'does not let'} the {one} send",
            ""
            if may
            else f"allow sqs:SendMessage to events.amazonaws.com where aws:SourceArn is {one.arn}, "
            f"the rule's ARN and not the bus': every event of this rule is refused",
        )


def encrypted(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """The key of the queue, which EventBridge must be allowed to use."""
    queue = facts.queue
    if queue is None or not queue.key or not any(it.to == queue.arn for it in facts.targets):
        return
    if queue.key.endswith(AWS_KEY):
        yield Finding(
            f"the queue {queue.name} is encrypted with {AWS_KEY}",
            "use SqsManagedSseEnabled, or a key of your own that events.amazonaws.com may use: "
            "EventBridge may not use this one, and every event is refused",
        )
    else:
        yield Finding(
            f"whether events.amazonaws.com may use the key {queue.key} of the queue {queue.name}",
            unchecked=True,
        )


def shaped(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Each target that changes the event on its way."""
    for one in facts.targets:
        if one.input:
            what = f"the {one} replaces every event by a constant"
        elif one.path not in ("", "$"):
            what = f"the {one} delivers {one.path} alone, without the event's id"
        elif one.template and not _keeps_id(one):
            what = f"the input transformer of the {one} drops the event's id"
        else:
            continue
        yield Finding(
            what,
            "deliver the whole event: remove the target's Input, InputPath or InputTransformer, or "
            "put <aws.events.event.json> into its template",
        )


def overlapping(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Two targets that may bring the same event, of one bus or of two."""
    clean = True
    for one, other in combinations(facts.targets, 2):
        if not overlap(_effective(one), _effective(other)):
            continue
        clean = False
        known = shared_type(one.pattern, other.pattern)
        events = f"{known} events" if known else "the same events"
        if (one.bus, one.rule) == (other.bus, other.rule):
            yield Finding(
                f"the {one} has two targets for the same events: {one.target}, {other.target}",
                f"remove one: aws events remove-targets --rule {one.rule} --event-bus-name "
                f"{one.bus} --ids {other.target}",
            )
        elif one.bus == other.bus:
            yield Finding(
                f"the rules {one.rule} and {other.rule} of bus {one.bus} both deliver {events}",
                "narrow one pattern, or delete one rule: each such event comes twice, and every "
                "second one is a copy that costs money",
            )
        else:
            yield Finding(
                f"{events} may come by two buses: {one.bus} (rule {one.rule}) and {other.bus} "
                f"(rule {other.rule})",
                "deliver from one bus alone: delete the rule on the other, or narrow its pattern",
            )
    if facts.targets and clean:
        yield Finding("no two targets deliver the same events")


def _effective(one: BusTarget) -> Pattern:
    """The pattern, with the source that every event on a partner's bus has."""
    implied = {"source": [{"prefix": one.bus}]} if one.bus.startswith(PARTNER) else {}
    return implied | one.pattern


def _keeps_id(one: BusTarget) -> bool:
    if any(it in one.template for it in WHOLE_EVENT):
        return True
    return any(path in ("$.id", "$") and f"<{name}>" in one.template
               for name, path in one.paths.items())  # fmt: skip


def _may_send(queue: QueueFacts, rule: str) -> bool:
    """Whether a statement of the queue's policy lets EventBridge send in this rule's name."""
    return any(
        it.get("Effect") == "Allow"
        and _names_eventbridge(it.get("Principal"))
        and any(fnmatchcase("sqs:sendmessage", act.lower()) for act in _listed(it.get("Action")))
        and all(
            any(fnmatchcase(rule, arn) for arn in arns)
            for arns in _source_arns(it.get("Condition") or {})
        )
        for it in _listed(queue.policy.get("Statement"))
    )


def _names_eventbridge(principal: Any) -> bool:
    if isinstance(principal, dict):
        return "events.amazonaws.com" in _listed(principal.get("Service")) or "*" in _listed(
            principal.get("AWS")
        )
    return bool(principal == "*")


def _source_arns(condition: dict[str, Any]) -> Iterator[list[str]]:
    for operator, keys in condition.items():
        if operator.startswith(("Arn", "String")) and "Not" not in operator:
            for key, value in keys.items():
                if key.lower() == "aws:sourcearn":
                    yield _listed(value)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
