"""The record of shadow mode: the events that its rules let run, and would have dropped."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from eventonce.clock import wall_clock
from eventonce.core.ports import Observer
from eventonce.errors import EventonceError
from eventonce.rules import Ruleset
from eventonce.rules.expressions import Hash, Path, parse_path
from eventonce.rules.keys import content_hash, encode
from eventonce.rules.parts import Incomplete, extractor, part, places_for
from eventonce.rules.rule import Rule
from eventonce.types import Event, Outcome

if TYPE_CHECKING:
    from eventonce.consumer import Consumer

_BODY: Final = Hash(Path("body", (), optional=True))

_OTHERWISE: Final = frozenset(
    [
        *("name", "remember", "lease", "timeout", "attempts", "on_store_error", "on_replay"),
        *("shadow", "redact"),
    ]
)
"""The fields of a rule that do not say which events are the same."""

GUARD: Final = "guard"
"""The field of a handler's result that says what the user's own guard decided."""


NO_RECORD: Final = (
    "No record of shadow mode is kept. A rule with shadow = true runs every event, and the file "
    'that shadow_log of eventonce.toml names, such as shadow_log = "shadow.jsonl", records what '
    "the rule would have dropped."
)

NO_RECORD_YET: Final = "{path} does not exist yet: nothing was decided in shadow mode"


class ShadowLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of one event under a rule in shadow mode, without the event's content."""

    shadow: int
    """The version of this form, 1."""
    at: int
    """The moment of the decision, in milliseconds."""
    id: str
    """The transport id, or a keyed digest of it."""
    type: str
    rule: str
    key: str
    remember: int
    would: str = ""
    """The status that the event would have without `shadow`; empty where it would run, too."""
    content: str = ""
    """A digest of a fact's body without the rule's ignored fields; empty for a state."""
    guard: str = ""
    """The decision of the user's own guard, `ran` or `dropped`; empty where the handler does not
    say."""
    fingerprint: str = ""
    """A digest of the rule that decided: with another key it is another rule of the same name."""


class Decided(NamedTuple):
    """An outcome under a rule in shadow mode."""

    outcome: Outcome
    rule: Rule
    at: int


def shadow_observer(consumer: Consumer, write: Callable[[Decided], object]) -> Observer:
    """Return an observer that calls `write` with each decision of a rule in shadow mode. The rules
    of the consumer may be replaced."""
    known = consumer.rules
    shadowed = _shadowed(known)

    def observe(outcome: Outcome, _seconds: float) -> None:
        nonlocal known, shadowed
        if consumer.rules is not known:
            known = consumer.rules
            shadowed = _shadowed(known)
        rule = shadowed.get(outcome.rule)
        if rule is not None and (outcome.shadowed or outcome.status == "done"):
            write(Decided(outcome, rule, wall_clock()))

    return observe


def _shadowed(rules: Ruleset) -> dict[str, Rule]:
    return {rule.name: rule for rule in rules.rules if rule.shadow}


def line_of(decided: Decided, named: Callable[[str], str] = str) -> bytes:
    """Return the line that is recorded; `named` turns a transport id into text that may be kept."""
    outcome, rule, at = decided
    event = outcome.event
    assert event is not None, "it has run"
    return msgspec.json.encode(
        ShadowLine(
            1,
            at,
            named(event.id),
            event.type,
            rule.name,
            outcome.key.hex(),
            int(rule.remember),
            outcome.shadowed,
            _digest(event, rule) if rule.kind == "fact" else "",
            _said_by_guard(outcome.result),
            _fingerprint(rule),
        )
    )


def to_standard_output(consumer: Consumer) -> Observer:
    """Return an observer that prints the lines: for a Lambda function, whose output is its log."""
    return shadow_observer(consumer, lambda decided: print(line_of(decided).decode()))  # noqa: T201  its job


@lru_cache(maxsize=256)
def _fingerprint(rule: Rule) -> str:
    """Return a digest of the fields that decide which events are the same."""
    fields = msgspec.to_builtins(rule, enc_hook=int)
    return content_hash(
        encode({name: value for name, value in fields.items() if name not in _OTHERWISE})
    ).hex()


def _said_by_guard(result: Any) -> str:
    said = result.get(GUARD) if isinstance(result, dict) else None
    return said if said in ("ran", "dropped") else ""


def _digest(event: Event, rule: Rule) -> str:
    """Return the digest of the body without the fields that the rule ignores: the content that
    `verify` compares."""
    try:
        value = _hashed(rule.ignore)(event)
    except (Incomplete, EventonceError, ValueError, RecursionError):
        return ""
    return value.hex() if isinstance(value, bytes) else ""


@lru_cache(maxsize=256)
def _hashed(ignore: tuple[str, ...]) -> Callable[[Event], Any]:
    ignored = tuple(parse_path(text) for text in ignore)
    places = places_for([_BODY], ignored)
    extract, hashed = extractor(tuple(places)), part(_BODY, places, ignored)
    return lambda event: hashed(extract(event))
