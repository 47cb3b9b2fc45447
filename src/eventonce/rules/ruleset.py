"""The rules of one consumer: the first rule that matches an event makes its claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import msgspec

from eventonce.errors import ConfigError, EnvelopeError
from eventonce.rules.claims import Claimer, Key, Keyring, claimer, compiled, keyring
from eventonce.rules.explanation import Explanation, explanation, refusal, subject_text
from eventonce.rules.expressions import Path, parse, parse_path, paths
from eventonce.rules.keys import ABSENT, check_secrets, is_empty
from eventonce.rules.parts import Extract, Incomplete, extractor, places_for, walk
from eventonce.rules.readings import FALLBACKS
from eventonce.rules.rule import Rule, legacy_path
from eventonce.types import Claim, Event

_TRANSPORT_ID: Final = "transport-id"

TRANSPORT: Final = (
    Rule(name=_TRANSPORT_ID, match={"form": "cxone"}, key=["id", "hash(envelope)", "time?"]),
    Rule(name=_TRANSPORT_ID, match={"form": "cloudevents"}, key=["source", "id"], missing="id"),
    Rule(name=_TRANSPORT_ID, key="id"),
)
"""The rules for events without a rule: the transport id is the key. The id of the form `cxone` is
in the event itself and may be that of an entity, which has many events, so it is never enough
alone. The id of a CloudEvent is unique within its source."""

_REMEMBERED: Final = 2048
"""The most kinds of event whose rules are cached: far more than a bus has."""

_LONGEST: Final = 1024
"""The most characters of source and type together that are cached: real ones have two hundred."""

Names = tuple[str, str, str, str]
"""The names that tell kinds of event apart: form, source, organisation and type."""


class _Keys(msgspec.Struct, frozen=True):
    """All keys of one rule."""

    own: Key
    fallbacks: tuple[Key, ...]
    older: tuple[Key, ...]
    legacy: tuple[Path, ...]


class _Candidate(msgspec.Struct, frozen=True):
    """A rule that may decide about events of one kind."""

    rule: Rule
    keys: _Keys
    claim: Claimer


class _Kind(msgspec.Struct, frozen=True):
    """The rules for one kind of event, in the order they are tried."""

    last: _Candidate
    """The first rule that requires nothing: it takes the events that the rules before it do not."""
    before: tuple[tuple[_Candidate, tuple[int, ...]], ...] = ()
    """The rules before it, each with the numbers of the values that it requires."""
    extract: Extract | None = None
    """Extracts all values that a rule requires."""

    def choose(self, event: Event) -> _Candidate:
        """Return the rule for this event."""
        if self.extract is not None:
            values = self.extract(event)
            for candidate, required in self.before:
                # An empty value is a missing one: the next rule may fit better.
                if not any(is_empty(values[number]) for number in required):
                    return candidate
        return self.last


class Ruleset:
    """Rules compiled for one consumer.

    `secrets` key every digest: the first is in use, and the others find older records.
    """

    def __init__(self, rules: Sequence[Rule], *, name: str, secrets: Sequence[bytes] = ()) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"name: expected the name of the consumer, such as 'crm-sync', not {name!r}: it is "
                "part of every key"
            )
        check_secrets(secrets)
        self.name = name
        self.rules = tuple(rules)
        self._keyring, *self._older = [keyring(secret) for secret in secrets or (b"",)]
        self.rotated = bool(self._older)
        """Whether there may be records under an older secret."""
        self._keys: dict[Rule, _Keys] = {}
        self._kinds: dict[Names, _Kind] = {}

    @cached_property
    def has_brief_results(self) -> bool:
        """Whether a rule keeps results for a shorter time than records."""
        return any(rule.keep_result is not None for rule in self.rules)

    @cached_property
    def headers(self) -> frozenset[str]:
        """The HTTP headers that the rules name: every way in keeps these headers of a request."""
        return frozenset(
            path.steps[0]
            for rule in self.rules
            for text in _texts(rule)
            if "headers" in text
            for path in paths(parse(text))
            if path.root == "headers"
        )

    def redacted_in(self, event: Event) -> tuple[str, ...]:
        """Return the paths that the rule of this event redacts."""
        if not self.redacts:
            return ()
        try:
            return self._chosen(event).rule.redact
        except EnvelopeError:
            # The event cannot be decoded, so its rule is not known: all paths count.
            return tuple(path for rule in self.rules for path in rule.redact)

    @cached_property
    def redacts(self) -> bool:
        """Whether some rule redacts something."""
        return any(rule.redact for rule in self.rules)

    def plan(self, event: Event, nonce: int) -> tuple[Rule, Claim]:
        """Return the rule that matches and its claim; EnvelopeError if a part is missing."""
        names = (event.form, event.source, event.own_org, event.type)
        kind = self._kinds.get(names) or self._kind(names, event)
        chosen = kind.choose(event) if kind.before else kind.last
        try:
            return chosen.rule, chosen.claim(event, nonce)
        except (Incomplete, ValueError, RecursionError):
            return chosen.rule, self._made(chosen.keys, event, nonce, self._keyring)[1]

    def also(self, event: Event, rule: Rule, nonce: int) -> list[Claim]:
        """Return claims with `peek`, on the keys of this event under older rules and secrets."""
        if not rule.also and not self.rotated:
            return []
        keys = self._chosen(event).keys
        current = self.plan(event, nonce)[1]
        claims = {current.key: current}
        for claim in self._before(keys, event, nonce):
            claims.setdefault(claim.key, claim)
        # A table that users made themselves knows no replays: its keys would stop a forced one.
        forced = event.replay and rule.on_replay == "force"
        for path in () if forced else keys.legacy:
            key = _legacy_key(event, path)
            if key:
                claims.setdefault(key, msgspec.structs.replace(current, key=key))
        del claims[current.key]
        return [msgspec.structs.replace(claim, peek=True) for claim in claims.values()]

    def subject(self, event: Event, key: bytes) -> str:
        """The subject that this key of an event was made of, in one text; empty for a fact, and
        where these rules make another key of the event, or none."""
        try:
            chosen = self._chosen(event)
            own = chosen.keys.own
            if own.kind != "state" or chosen.claim(event, 0).key != key:
                return ""
            return subject_text(own, own.extract(event))
        except (EnvelopeError, Incomplete, ValueError, RecursionError):
            return ""

    def explain(self, event: Event) -> Explanation:
        """Return the rule, the parts and the key of an event, and its missing parts."""
        if not isinstance(event, Event):
            raise ConfigError(
                f"explain: expected an Event, not {type(event).__name__}; eventonce.envelope.read "
                "makes one of bytes, text or a dict"
            )
        keys = self._chosen(event).keys
        try:
            key, claim = self._made(keys, event, 0, self._keyring)
        except EnvelopeError:
            return explanation(keys.own, keys.own, None, event)
        return explanation(key, keys.own, claim, event)

    def _chosen(self, event: Event) -> _Candidate:
        names = (event.form, event.source, event.own_org, event.type)
        return (self._kinds.get(names) or self._kind(names, event)).choose(event)

    def _kind(self, names: Names, event: Event) -> _Kind:
        """Find the rules that match events of this kind, up to the first that requires nothing."""
        found: list[_Candidate] = []
        for rule in (*self.rules, *TRANSPORT):
            if rule.match.fits(event.form, event.source, event.type):
                # Compiled when first needed: a preset has many rules, and most sources few types.
                keys = self._keys.get(rule)
                if keys is None:
                    keys = self._keys[rule] = _keys(rule)
                claim = claimer(keys.own, self.name, event, self._keyring)
                found.append(_Candidate(rule, keys, claim))
                if not rule.requires:
                    break
        *before, last = found
        required = [[parse_path(text) for text in one.rule.requires] for one in before]
        places = places_for([path for paths_ in required for path in paths_])
        kind = _Kind(
            last,
            tuple(
                (one, tuple(places[path.root, path.steps] for path in paths_))
                for one, paths_ in zip(before, required, strict=True)
            ),
            extractor(tuple(places)) if before else None,
        )
        if len(event.source) + len(event.type) <= _LONGEST:
            if len(self._kinds) >= _REMEMBERED:
                self._kinds.clear()
            self._kinds[names] = kind
        return kind

    def _made(self, keys: _Keys, event: Event, nonce: int, by: Keyring) -> tuple[Key, Claim]:
        """Return the first key that the event has, the rule's own or a fallback, and its claim. For
        any content of an event, the only exception is EnvelopeError."""
        holes = []
        for key in (keys.own, *keys.fallbacks):
            try:
                return key, self._claim(key, event, nonce, by)
            except Incomplete as incomplete:
                holes.append(incomplete)
        raise _error(keys.own, event, holes[0])

    def _before(self, keys: _Keys, event: Event, nonce: int) -> Iterator[Claim]:
        """Yield the claims on the keys of this event under older rules and older secrets."""
        for by in (self._keyring, *self._older):
            if by is not self._keyring:
                key, claim = self._made(keys, event, nonce, by)
                if key.kind != "run":
                    yield claim
            for key in keys.older:
                try:
                    yield self._claim(key, event, nonce, by)
                except Incomplete:
                    continue

    def _claim(self, key: Key, event: Event, nonce: int, by: Keyring) -> Claim:
        try:
            return claimer(key, self.name, event, by)(event, nonce)
        except (ValueError, RecursionError) as error:
            name = key.rule.name
            raise EnvelopeError(f"rule {name!r}: {error}", rule=name) from None


def _keys(rule: Rule) -> _Keys:
    older = [old for old in rule.also if not isinstance(old, str)]
    return _Keys(
        own=compiled(rule, rule.key or rule.subject, rule.kind),
        fallbacks=tuple(compiled(rule, texts, kind) for kind, texts in FALLBACKS[rule.missing]),
        older=tuple(compiled(rule, old, rule.kind) for old in older),
        legacy=tuple(legacy_path(old) for old in rule.also if isinstance(old, str)),
    )


def _texts(rule: Rule) -> list[str]:
    """Return every path and expression of a rule that is evaluated."""
    verified = () if isinstance(rule.verify, bool) else rule.verify
    older = (text for old in rule.also if not isinstance(old, str) for text in old)
    single = (text for text in (rule.order, rule.at) if text)
    return [*rule.requires, *rule.key, *rule.subject, *rule.state, *verified, *older, *single]


def _error(key: Key, event: Event, incomplete: Incomplete) -> EnvelopeError:
    if key.rule.name == _TRANSPORT_ID:
        return EnvelopeError(
            "no rule matches the event, and it has no id of its own: write a rule for it",
            place="id",
        )
    place = ".".join((incomplete.path.root, *incomplete.path.steps))
    said = refusal(key, event)
    name = key.rule.name
    return EnvelopeError(f"rule {name!r}: {said}", place=place, rule=name)


def _legacy_key(event: Event, path: Path) -> bytes | None:
    """Return the key in a table that users made: the hex digest of a text, or of `json.dumps`."""
    import json  # noqa: PLC0415  slow to import, and needed only with such a table
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
