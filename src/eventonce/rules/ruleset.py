"""From an event to its claim, by the first rule that fits it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from typing import Final

import msgspec

from eventonce.errors import ConfigError, EnvelopeError
from eventonce.rules.check import legacy_path
from eventonce.rules.claims import (
    Claimer,
    Keyring,
    Quick,
    claimer,
    header_of,
    keyring,
    quick_claimer,
    unique_claim,
)
from eventonce.rules.evaluation import Incomplete
from eventonce.rules.explanation import Explanation, explanation, refusal
from eventonce.rules.expressions import Path, parse, paths
from eventonce.rules.extraction import Picker, Tree, Values, walk
from eventonce.rules.keys import ABSENT
from eventonce.rules.plans import FALLBACKS, Plan, plan_for
from eventonce.rules.rule import Rule
from eventonce.types import Claim, Event

_TRANSPORT_ID: Final = "transport-id"

TRANSPORT: Final = (
    Rule(name=_TRANSPORT_ID, match={"form": "cxone"}, key=["id", "hash(detail)", "time?"]),
    Rule(name=_TRANSPORT_ID, match={"form": "cloudevents"}, key=["source?", "id"]),
    Rule(name=_TRANSPORT_ID, key="id"),
)
"""With no rule the transport id is the fact. The id of the first form stands in the event itself:
it may be an entity's, which has many events, and is never believed alone. That of a CloudEvent is
unique within its source."""

_REMEMBERED: Final = 2048
"""Types whose rules are remembered: far more than a bus carries, and a bound all the same."""


_LONGEST: Final = 1024
"""Characters of source and type together that are remembered: real ones have two hundred."""


Names = tuple[str, str, str, str]
"""What tells kinds of event apart: form, source, organisation and type."""


class _Entry(msgspec.Struct, frozen=True):
    """Every way to a key that a rule has."""

    plan: Plan
    fallbacks: tuple[Plan, ...]
    also: tuple[Plan, ...]
    legacy: tuple[Path, ...]


class _Fit(msgspec.Struct, frozen=True):
    """A rule that may decide on events of one kind, ready to."""

    entry: _Entry
    rule: Rule
    picker: Picker | None
    exists: Callable[[Values], bool] | None
    picked: Claimer
    walked: Claimer


class Ruleset:
    """Rules compiled for one consumer.

    `secrets` key every digest: the first is in use, under the others older records are found.
    """

    def __init__(self, rules: Sequence[Rule], *, name: str, secrets: Sequence[bytes] = ()) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError("a ruleset needs the name of its consumer: it is part of every key")
        self.name = name
        self.rules = tuple(rules)
        self._keyring, *self._older = [keyring(secret) for secret in secrets or (b"",)]
        self._entries: dict[Rule, _Entry] = {}
        self._fits: dict[Names, list[_Fit]] = {}
        self._quick: dict[Names, Quick] = {}
        self._deliveries = count()

    @cached_property
    def headers(self) -> frozenset[str]:
        """The HTTP headers that the rules name: a way in keeps these of a request."""
        return frozenset(
            path.steps[0]
            for rule in self.rules
            for text in _texts(rule)
            if "headers" in text
            for path in paths(parse(text))
            if path.root == "headers"
        )

    def plan(self, event: Event, nonce: int) -> tuple[Rule, Claim]:
        """The rule that fits and the claim it makes; EnvelopeError where the key is incomplete."""
        names = (event.form, event.source, event.own_org, event.type)
        quick = self._quick.get(names)
        try:
            if quick is not None:
                return quick(event, nonce)
            for fit in self._fits.get(names) or self._find(event):
                picker = fit.picker
                if picker is None:
                    break
                values = picker.read_off(picker.decode(event.detail_raw))
                if picker.others is not None:
                    values += picker.others(event)
                if fit.exists is None or fit.exists(values):
                    return fit.rule, fit.picked(event, values, nonce)
        except (ValueError, OverflowError, RecursionError, Incomplete):
            # An unusual shape: the walk can take it, or says what is wrong with it.
            pass
        tree = Tree(event)
        fit = self._fit(tree)
        return fit.rule, self._walked(fit, tree, nonce)[1]

    def also(self, event: Event, rule: Rule, nonce: int) -> list[Claim]:
        """Claims that only look, on the keys this event had under older rules and secrets."""
        if not rule.also and not self._older:
            return []
        tree = Tree(event)
        fit = self._fit(tree)
        entry = fit.entry
        current = self._walked(fit, tree, nonce)[1]
        claims = {current.key: current}
        pairs = [(plan, self._keyring) for plan in entry.also]
        pairs += [(plan, old) for old in self._older for plan in (entry.plan, *entry.also)]
        for plan, old in pairs:
            try:
                claim = self._made(plan, plan.walk(tree), event, nonce, old)
            except Incomplete:
                continue
            claims.setdefault(claim.key, claim)
        # A table made by hand names no replay: what it holds would keep a forced one from running.
        forced = event.replay and rule.on_replay == "force"
        for path in () if forced else entry.legacy:
            key = _legacy_key(event, path)
            if key:
                claims.setdefault(key, msgspec.structs.replace(current, key=key))
        del claims[current.key]
        return [msgspec.structs.replace(claim, peek=True) for claim in claims.values()]

    def explain(self, event: Event) -> Explanation:
        """Which rule, which parts, which key; what is missing is said, not raised."""
        tree = Tree(event)
        fit = self._fit(tree)
        own = fit.entry.plan
        try:
            plan, claim = self._walked(fit, tree, 0)
        except EnvelopeError:
            return explanation(own, own, None, tree)
        return explanation(plan, own, claim, tree)

    def _find(self, event: Event) -> list[_Fit]:
        """The rules that match events of this kind, up to the first that requires nothing."""
        found = []
        for rule in (*self.rules, *TRANSPORT):
            if rule.match.fits(event.form, event.source, event.type):
                found.append(self._ready(rule, event))
                if not rule.requires:
                    break
        if len(event.source) + len(event.type) <= _LONGEST:
            if len(self._fits) >= _REMEMBERED:
                self._fits.clear()
                self._quick.clear()
            names = (event.form, event.source, event.own_org, event.type)
            self._fits[names] = found
            first = found[0].entry.plan
            quick = quick_claimer(first, header_of(first, self.name, event), self._keyring)
            if quick:
                self._quick[names] = quick
        return found

    def _ready(self, rule: Rule, event: Event) -> _Fit:
        # Compiled when first needed: a preset has many rules, and most sources few types.
        entry = self._entries.get(rule)
        if entry is None:
            entry = self._entries[rule] = _entry(rule)
        plan = entry.plan
        header = header_of(plan, self.name, event)
        return _Fit(
            entry=entry,
            rule=rule,
            picker=plan.picker,
            exists=plan.picked.exists if rule.requires else None,
            picked=claimer(plan, plan.picked, header, self._keyring),
            walked=claimer(plan, plan.walked, header, self._keyring),
        )

    def _fit(self, tree: Tree) -> _Fit:
        """The first rule that fits this very event."""
        event = tree.event
        fits = self._fits.get((event.form, event.source, event.own_org, event.type))
        *asking, last = fits or self._find(event)
        for fit in asking:
            if fit.entry.plan.fits(tree):
                return fit
        return last

    def _walked(self, fit: _Fit, tree: Tree, nonce: int) -> tuple[Plan, Claim]:
        plan = fit.entry.plan
        values = plan.walk(tree)
        try:
            return plan, _guarded(fit.walked, fit.rule, tree.event, values, nonce)
        except Incomplete as incomplete:
            error = _error(plan, values, tree, incomplete)
        for fallback in fit.entry.fallbacks:
            try:
                claim = self._made(fallback, fallback.walk(tree), tree.event, nonce, self._keyring)
            except Incomplete:
                continue
            return fallback, claim
        raise error

    def _made(
        self, plan: Plan, values: Values, event: Event, nonce: int, keyring: Keyring
    ) -> Claim:
        header = header_of(plan, self.name, event)
        if plan.kind == "run":
            delivery = event.delivery or f"{nonce}-{next(self._deliveries)}"
            return unique_claim(plan, header, keyring, delivery, nonce)
        make = claimer(plan, plan.walked, header, keyring)
        return _guarded(make, plan.rule, event, values, nonce)


def _entry(rule: Rule) -> _Entry:
    older = [old for old in rule.also if not isinstance(old, str)]
    return _Entry(
        plan=plan_for(rule, rule.key or rule.subject, rule.kind),
        fallbacks=tuple(plan_for(rule, texts, kind) for kind, texts in FALLBACKS[rule.missing]),
        also=tuple(plan_for(rule, old, rule.kind) for old in older),
        legacy=tuple(legacy_path(old) for old in rule.also if isinstance(old, str)),
    )


def _texts(rule: Rule) -> list[str]:
    """Every path and expression of a rule that is evaluated."""
    verified = () if isinstance(rule.verify, bool) else rule.verify
    older = (text for old in rule.also if not isinstance(old, str) for text in old)
    single = (text for text in (rule.order, rule.at) if text)
    return [*rule.requires, *rule.key, *rule.subject, *rule.state, *verified, *older, *single]


def _guarded(make: Claimer, rule: Rule, event: Event, values: Values, nonce: int) -> Claim:
    """The claim; nothing an event holds raises anything but EnvelopeError and Incomplete."""
    try:
        return make(event, values, nonce)
    except (ValueError, RecursionError) as error:
        raise EnvelopeError(f"rule {rule.name!r}: {error}", rule=rule.name) from None


def _error(plan: Plan, values: Values, tree: Tree, incomplete: Incomplete) -> EnvelopeError:
    if plan.rule.name == _TRANSPORT_ID:
        return EnvelopeError(
            "no rule matches the event, and it has no id of its own: write a rule for it",
            place="id",
        )
    place = ".".join((incomplete.path.root, *incomplete.path.steps))
    said = refusal(plan, values, tree)
    name = plan.rule.name
    return EnvelopeError(f"rule {name!r}: {said}", place=place, rule=name)


def _legacy_key(event: Event, path: Path) -> bytes | None:
    """The key of a table made by hand: the hex digest of a text, or of `json.dumps` of the rest."""
    import json  # noqa: PLC0415  slow to import, and only who moves from such a table needs it
    from hashlib import sha256  # noqa: PLC0415  likewise

    try:
        detail = json.loads(bytes(event.detail_raw))
        nested = path.root == "body" and isinstance(detail, dict) and "eventBody" in detail
        value = walk(detail["eventBody"] if nested else detail, path.steps)
        if value is ABSENT or value is None:
            return None
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        return sha256(text.encode()).hexdigest().encode()
    except (ValueError, RecursionError):
        return None
