"""The policy of a queue: whether it allows EventBridge to send for a rule.

Each question has three answers: yes, no, and None for a statement that cannot be judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

EVENTBRIDGE: Final = "events.amazonaws.com"
SEND_ACTION: Final = "sqs:sendmessage"

OF_EVERY_SEND: Final = {"aws:securetransport": "true", "aws:principalisawsservice": "true"}
"""The condition keys that have the same value for every message of EventBridge."""


class Answer(msgspec.Struct, frozen=True):
    """Whether a rule may send, and the statement that decides or that cannot be judged."""

    may: bool | None
    statement: str = ""


def may_send(policy: dict[str, Any], queue: str, rule: str) -> Answer:
    """Return whether the rule may send; a statement that denies wins over all that allow."""
    allowed, denied = Answer(False), Answer(False)
    for number, statement in enumerate(_listed(policy.get("Statement")), 1):
        applies = _applies(statement, queue, rule)
        name = str(statement.get("Sid") or f"number {number}")
        if statement.get("Effect") == "Deny":
            denied = _stronger(denied, Answer(applies, name))
        else:
            allowed = _stronger(allowed, Answer(applies, name))
    if denied.may:
        return Answer(False, denied.statement)
    if allowed.may is False:
        return Answer(False)
    return denied if denied.may is None else allowed


def _stronger(one: Answer, other: Answer) -> Answer:
    """Return the stronger answer, yes before unknown before no: one statement is enough."""
    strength = {False: 0, None: 1, True: 2}
    return other if strength[other.may] > strength[one.may] else one


def _applies(statement: dict[str, Any], queue: str, rule: str) -> bool | None:
    return _all(
        (
            _names_eventbridge(statement),
            _lists(statement, "Action", SEND_ACTION),
            _lists(statement, "Resource", queue.lower()),
            *_conditions(statement.get("Condition") or {}, rule),
        )
    )


def _all(answers: Iterable[bool | None]) -> bool | None:
    given = set(answers)
    return False if False in given else None if None in given else True


def _names_eventbridge(statement: dict[str, Any]) -> bool | None:
    if "NotPrincipal" in statement:
        return None
    principal = statement.get("Principal")
    if isinstance(principal, dict):
        named = _listed(principal.get("Service"))
        return EVENTBRIDGE in named or "*" in named or "*" in _listed(principal.get("AWS"))
    return bool(principal == "*")


def _lists(statement: dict[str, Any], field: str, value: str) -> bool | None:
    """Whether the statement is about this action or resource; without the field, about all."""
    if f"Not{field}" in statement:
        return not _like_any(value, statement[f"Not{field}"])
    return field not in statement or _like_any(value, statement[field])


def _like_any(value: str, globs: Any) -> bool:
    return any(fnmatchcase(value, str(glob).lower()) for glob in _listed(globs))


def _conditions(condition: dict[str, Any], rule: str) -> Iterator[bool | None]:
    for operator, keys in condition.items():
        for key, wanted in keys.items():
            values = [str(it) for it in _listed(wanted)]
            name = operator.lower().removesuffix("ifexists")
            if any("${" in it for it in values):
                yield None
            elif key.lower() == "aws:sourcearn":
                yield _holds(name, rule, values)
            elif name == "bool" and key.lower() in OF_EVERY_SEND:
                yield OF_EVERY_SEND[key.lower()] in (it.lower() for it in values)
            else:
                yield None


def _holds(operator: str, arn: str, values: list[str]) -> bool | None:
    """Whether an operator of ARNs or texts holds for the rule's ARN."""
    negated = "not" in operator
    match operator.replace("not", ""):
        case "stringequals":
            found: bool | None = arn in values
        case "stringlike":
            found = any(fnmatchcase(arn, it) for it in values)
        case "arnequals" | "arnlike":
            answers = {_like_arn(arn, it) for it in values}
            found = True if True in answers else None if None in answers else False
        case _:
            return None
    return found if found is None else found != negated


def _like_arn(arn: str, glob: str) -> bool | None:
    """Whether the ARN matches the glob, part by part, as AWS compares them. For a glob without six
    parts the answer is False if a part differs, and otherwise None."""
    wanted, parts = glob.split(":", 5), arn.split(":", 5)
    alike = all(fnmatchcase(part, it) for part, it in zip(parts, wanted, strict=False))
    return alike if len(wanted) == len(parts) or not alike else None


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
