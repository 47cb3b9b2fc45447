"""Makes what a plan describes and mends what differs; says each step, and deletes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from eventonce.errors import ConfigError, EventonceError
from eventonce.infra import resources
from eventonce.infra.account import Account
from eventonce.infra.plan import PARTNER, Infra, Plan, Table
from eventonce.infra.queues import queue
from eventonce.infra.resources import Place
from eventonce.stores.dynamodb import DynamoDBStore

_OF_OTHERS: Final = ("Description", "RoleArn", "ScheduleExpression")
"""What a rule may have that is none of ours."""


class Applied(msgspec.Struct, frozen=True):
    """What was done, or would be, and what is there now."""

    steps: list[str]
    left: list[str]
    """What is not as it should be, and was left as it is."""
    resources: dict[str, str]


def apply(
    infra: Infra,
    plan: Plan,
    *,
    dry_run: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Applied:
    """Make all that is missing and mend what differs; a second time there is nothing to do.

    Each step is said when it is done.
    """
    account = Account(infra, say, dry_run=dry_run)
    try:
        place = _bus(account, plan)
        there = {
            name: place.queue(getattr(plan, name)) for name in ("queue", "dead", "undelivered")
        }
        # The rule before the queues, so that they let it in from the start, and its target last:
        # what it sends before it is let in is refused.
        rule = _rule(account, plan, place)
        if plan.misplaced:
            account.left.append(plan.misplaced)
        queue(account, plan.dead, resources.dead_settings(plan, there["queue"]))
        queue(
            account,
            plan.undelivered,
            resources.kept_settings(plan.undelivered),
            resources.let_in(plan, there["undelivered"], rule),
        )
        queue(
            account,
            plan.queue,
            resources.queue_settings(plan, there["dead"]),
            resources.let_in(plan, there["queue"], rule),
        )
        _target(account, plan, resources.target(plan, there["queue"], there["undelivered"]))
        made = {"rule": rule, **there}
        if plan.letterbox:
            queue(account, plan.letterbox, resources.kept_settings(plan.letterbox))
            made["letters"] = place.queue(plan.letterbox)
        elif plan.letters is not None and (plan.letters.region or plan.letters.account):
            account.left.append(
                f"letters go to the queue {plan.letters.name}, which says where it is: it is for "
                f"you to make there"
            )
        if plan.table is not None:
            account.done(_table(plan.table, dry_run=dry_run))
            made["table"] = place.elsewhere(plan.table.region).table(plan.table.name)
    finally:
        account.close()
    return Applied(account.steps, account.left, made)


def _bus(account: Account, plan: Plan) -> Place:
    """See to it that the bus is there; answers where."""
    what = f"EventBridge bus {plan.bus}"
    found = account.find("events", "describe_event_bus", what, Name=plan.bus)
    if found is not None:
        return Place.of(found["Arn"])
    asked = {"Name": plan.bus}
    if plan.bus.startswith(PARTNER):
        asked["EventSourceName"] = plan.bus
    place = Place(account.region, _number(account, plan) if account.dry_run else "")

    def make() -> None:
        nonlocal place
        made = account.find("events", "create_event_bus", what, **asked)
        if made is None:
            raise ConfigError(
                f"{what}: AWS knows no event source of that name in this account and region. Make "
                f"the integration at the partner's first; AWS then offers its source here."
            )
        place = Place.of(made["EventBusArn"])

    account.step(f"make the bus {plan.bus}", make)
    return place


def _number(account: Account, plan: Plan) -> str:
    """The account's: where no bus is made nothing tells it but a queue that is there."""
    found = account.find("sqs", "get_queue_url", f"SQS queue {plan.queue}", QueueName=plan.queue)
    return str(found["QueueUrl"]).split("/")[-2] if found else "ACCOUNT"


def _rule(account: Account, plan: Plan, place: Place) -> str:
    """See to it that the rule is there and matches what it must; answers its ARN."""
    what = f"EventBridge rule {plan.rule}"
    asked = {"Name": plan.rule, "EventBusName": plan.bus}
    found = account.find("events", "describe_rule", what, **asked)
    there = found or {}
    pattern = json.dumps(plan.pattern)
    arn = place.rule(plan.bus, plan.rule)
    off = there.get("State", "DISABLED") == "DISABLED"
    # A rule is replaced as a whole: what is not said again is gone.
    others = {key: there[key] for key in _OF_OTHERS if there.get(key)}

    def put() -> None:
        nonlocal arn
        made = account.ask(
            "events",
            "put_rule",
            what,
            **asked,
            EventPattern=pattern,
            State="ENABLED" if off else there["State"],
            **{"Description": f"Events for the queue {plan.queue}, made by eventonce", **others},
        )
        arn = str(made["RuleArn"])

    if found is None:
        account.step(f"make the rule {plan.rule} on the bus {plan.bus} for {pattern}", put)
        return arn
    now = json.loads(found.get("EventPattern") or "{}")
    if now != plan.pattern:
        said = f"let the rule {plan.rule} match {pattern} (was {json.dumps(now)})"
        account.step(said, put)
    elif off:
        account.step(f"enable the rule {plan.rule}", put)
    return str(found["Arn"])


def _target(account: Account, plan: Plan, described: dict[str, Any]) -> None:
    """See to it that the rule sends to the queue, once."""
    what = f"EventBridge rule {plan.rule}"
    asked = {"Rule": plan.rule, "EventBusName": plan.bus}
    answer = account.find("events", "list_targets_by_rule", what, **asked) or {}
    targets = answer.get("Targets", ())
    ours = [it for it in targets if it["Arn"] == described["Arn"]]
    if ours:
        # Under whatever id it has, since a second target of the same queue would double every
        # event; and with what else was said of it, such as an input path.
        wanted = {**ours[0], **described, "Id": ours[0]["Id"]}
        if wanted == ours[0]:
            return
    else:
        wanted = {**described, "Id": _free(described["Id"], {it["Id"] for it in targets})}

    def put() -> None:
        answer = account.ask("events", "put_targets", what, **asked, Targets=[wanted])
        for failed in answer.get("FailedEntries") or ():
            raise EventonceError(f"{what}: {failed['ErrorCode']}: {failed['ErrorMessage']}")

    if ours:
        account.step(f"set how the rule {plan.rule} delivers to the queue {plan.queue}", put)
    else:
        account.step(
            f"send what the rule {plan.rule} matches to the queue {plan.queue}, and what cannot "
            f"be delivered to {plan.undelivered}",
            put,
        )


def _free(id: str, taken: Container[str]) -> str:
    """An id that no target has: one put under another's would take its place."""
    if id not in taken:
        return id
    numbered = (f"{id[-60:]}-{number}" for number in range(2, 100))
    return next(one for one in numbered if one not in taken)


def _table(table: Table, *, dry_run: bool) -> list[str]:
    named = ("region", "endpoint", "profile", "key", "expiry")
    options = urlencode({name: getattr(table, name) for name in named if getattr(table, name)})
    store = DynamoDBStore.from_uri(f"dynamodb://{table.name}?{options}")
    try:
        return store.create(dry_run=dry_run)
    finally:
        store.close()
