"""The checks of the buses: EventBridge's rules, their targets, and the policy of the queue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, Final

from eventonce import envelope
from eventonce.core.ports import Finding, judged
from eventonce.doctor.facts import (
    DEFAULT_RETRIES,
    RETRY_AGE,
    BusTarget,
    Facts,
    FileFacts,
    QueueFacts,
)
from eventonce.doctor.patterns import TYPE_FIELD, Pattern, overlap, shared_type
from eventonce.doctor.policies import may_send
from eventonce.errors import EnvelopeError
from eventonce.infra.topology import PARTNER_PREFIX, absent_partner, partner_remedy

AWS_KEY: Final = "alias/aws/sqs"
"""The key that AWS manages for SQS, whose policy nobody can change."""

TRIAL_EVENT: Final = {
    "id": "7bf73129-1428-4cd3-a780-95db273d1602",
    "source": "eventonce.doctor",
    "detail-type": "a trial of eventonce doctor",
    "time": "2026-01-01T00:00:00Z",
    "detail": {"trial": "of eventonce doctor"},
}
"""An event to test the input transformers with: it has all fields that a key may need."""

PREDEFINED: Final = {
    "aws.events.event": {name: value for name, value in TRIAL_EVENT.items() if name != "detail"},
    "aws.events.event.json": TRIAL_EVENT,
}
"""The predefined variables of an input transformer that hold parts of the event. The others, such
as `aws.events.rule-name`, hold nothing of the event."""

STRINGS_AND_VARIABLES: Final = re.compile(r'"(?:[^"\\]|\\.)*"|<[^<>]*>', re.DOTALL)


def retried(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check each target: whether it is enabled, how long it retries, and whether it keeps events
    that it could not deliver."""
    for one in facts.targets:
        if not one.enabled:
            yield Finding(
                f"the {one} is disabled",
                f"enable it (aws events enable-rule --name {one.rule} --event-bus-name {one.bus}), "
                f"or delete it: no event comes by it",
            )
        yield judged(
            one.age >= RETRY_AGE and one.retries >= DEFAULT_RETRIES,
            f"the {one} tries {one.retries} times within {one.age} s",
            f"remove the target's RetryPolicy, or set it to {DEFAULT_RETRIES} times and "
            f"{RETRY_AGE} s: an event is given up sooner than EventBridge can do",
        )
        yield judged(
            one.dead != "",
            f"the {one} names a queue for undelivered events"
            if one.dead
            else f"the {one} drops events that it could not deliver",
            "give the target a DeadLetterConfig with a standard queue: after its last retry "
            "an event is lost",
        )


def admitted(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check the policy of each queue for the rules that send to it: events, or events that could
    not be delivered."""
    undelivered = {it.arn: it for it in facts.undelivered}
    for one in facts.targets:
        queue = facts.queue
        if one.topic:
            yield Finding(
                f"whether the topic {one.topic} passes on all that the {one} sends to it: look at "
                f"the filter of the subscription, and at the policies of the topic and the queue",
                unchecked=True,
            )
        if queue is not None and one.to == queue.arn:
            if one.role:
                yield Finding(
                    f"whether the {one} may send: it does so as {one.role}, whose rights were not "
                    f"looked at",
                    unchecked=True,
                )
            else:
                yield _admitted(one, queue, "the queue", "every event of this rule is refused")
        kept = undelivered.get(one.dead)
        if kept is not None:
            lost = "an event that could not be delivered is lost"
            yield _admitted(one, kept, f"the queue {kept.name} for undelivered events", lost)


def _admitted(one: BusTarget, queue: QueueFacts, name: str, loss: str) -> Finding:
    answer = may_send(queue.policy, queue.arn, one.arn)
    if answer.may is None:
        return Finding(
            f"whether the policy of {name} lets the {one} send: its statement {answer.statement} "
            f"has a condition or a principal that cannot be judged from here",
            unchecked=True,
        )
    return Finding(
        f"the policy of {name} {'lets' if answer.may else 'does not let'} the {one} send",
        "" if answer.may else _admit(one, answer.statement, loss),
    )


def encrypted(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check the key of the queue, which EventBridge must be allowed to use."""
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
    """Check each target that changes the event."""
    for one in facts.targets:
        if one.input:
            what = f"the {one} replaces every event by a constant"
        elif one.path not in ("", "$"):
            what = f"the {one} delivers {one.path} alone, without the event's id"
        elif one.template and (dropped := _dropped(one)):
            what = f"the input transformer of the {one} drops the event's {dropped}"
        else:
            continue
        yield Finding(
            what,
            "deliver the event as it is: remove the target's Input, InputPath or InputTransformer",
        )


def matching(facts: Facts, file: FileFacts) -> Iterator[Finding]:
    """Check for rules whose pattern matches no event of the bus, or no event that a sink takes."""
    for one in facts.targets:
        partner = absent_partner(one.bus, one.pattern)
        if partner and one.forwarded is None:
            yield Finding(
                f"whether events of {partner} are forwarded to bus {one.bus}, where the rule "
                f"{one.rule} waits for them",
                unchecked=True,
            )
        elif partner and not one.forwarded:
            yield Finding(
                f"the {one} matches no event of {partner}", partner_remedy(one.bus, partner)
            )
        types: list[Pattern] = [{TYPE_FIELD: [{"wildcard": glob}]} for glob in file.taken]
        if types and not one.reshaped and not any(overlap(one.pattern, it) for it in types):
            yield Finding(
                f"the {one} brings only events that no sink takes",
                "correct its pattern, or write a [[sink]] for its types: every event of it is "
                "treated as unhandled",
            )


def overlapping(facts: Facts, _: FileFacts) -> Iterator[Finding]:
    """Check for two targets that may deliver the same event, of one bus or of two."""
    clean = True
    delivering = [it for it in facts.targets if it.enabled]
    for one, other in combinations(delivering, 2):
        pairs = product(_patterns(one), _patterns(other))
        if not all(overlap(ours, theirs) for ours, theirs in pairs):
            continue
        clean = False
        known = shared_type(one.pattern, other.pattern)
        events = f"{known} events" if known else "the same events"
        if (one.bus, one.rule) == (other.bus, other.rule):
            what = f"the {one} has two targets for the same events: {one.target}, {other.target}"
            fix = (
                f"remove one: aws events remove-targets --rule {one.rule} --event-bus-name "
                f"{one.bus} --ids {other.target}"
            )
        elif one.bus == other.bus:
            what = f"the rules {one.rule} and {other.rule} of bus {one.bus} both deliver {events}"
            fix = (
                "narrow one pattern, or delete one rule: each such event comes twice, and every "
                "second one is a copy that costs money"
            )
        else:
            what = (
                f"{events} may come by two buses: {one.bus} (rule {one.rule}) and {other.bus} "
                f"(rule {other.rule})"
            )
            fix = "deliver from one bus alone: delete the rule on the other, or narrow its pattern"
        topics = ", ".join({it.topic: "" for it in (one, other) if it.topic})
        if topics:
            what += f"; by the topic {topics}"
            fix += f". Or end the queue's subscription to the topic {topics}: aws sns unsubscribe"
        yield Finding(what, fix)
    if delivering and clean:
        yield Finding("no two targets deliver the same events")


def _patterns(one: BusTarget) -> Iterator[Pattern]:
    """Yield the pattern, and for a partner's bus the source that every event there has."""
    yield one.pattern
    if one.bus.startswith(PARTNER_PREFIX):
        yield {"source": [{"prefix": one.bus}]}


def _dropped(one: BusTarget) -> str:
    """Return the fields of the event that a consumer would not find; empty if it finds all. An id
    under another name is lost."""
    try:
        found = envelope.read(_transformed(one))
    except EnvelopeError:
        return "id"
    # The detail-type is the attribute `type` of an event.
    read = {name: getattr(found, name.removeprefix("detail-")) for name in TRIAL_EVENT}
    return ", ".join(name for name, value in TRIAL_EVENT.items() if read[name] != value)


def _transformed(one: BusTarget) -> str:
    """Return the trial as the transformer changes it; a variable in quotation marks is replaced by
    its text. Predefined variables are not escaped there, and break the text."""

    def value(name: str) -> Any:
        if name not in one.paths:
            return PREDEFINED.get(name)
        found: Any = TRIAL_EVENT
        for field in one.paths[name].split(".")[1:]:
            found = found.get(field) if isinstance(found, dict) else None
        return found

    def quoted(variable: re.Match[str]) -> str:
        found = value(variable[1])
        if variable[1] in PREDEFINED:
            return json.dumps(found)
        return json.dumps(found if isinstance(found, str) else json.dumps(found))[1:-1]

    def filled(match: re.Match[str]) -> str:
        if match[0].startswith("<"):
            return json.dumps(value(match[0][1:-1]))
        return re.sub(r"<([^<>]*)>", quoted, match[0])

    return STRINGS_AND_VARIABLES.sub(filled, one.template)


def _admit(one: BusTarget, denied: str, loss: str) -> str:
    """Return the remedy for a rule that may not send, with the statement that denies it, if any."""
    if denied:
        return (
            f"let the statement {denied} of the queue's policy, which denies it, except "
            f"events.amazonaws.com where aws:SourceArn is {one.arn}: {loss}"
        )
    return (
        f"allow sqs:SendMessage to events.amazonaws.com where aws:SourceArn is {one.arn}, the "
        f"rule's ARN and not the bus': {loss}"
    )
