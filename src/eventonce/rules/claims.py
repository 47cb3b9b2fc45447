"""The claims of a rule: the rule compiled with one list of parts, and the function that makes its
claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec.structs import replace

from eventonce.rules.expressions import (
    Expression,
    Hash,
    Path,
    Time,
    made_optional,
    parse,
    parse_path,
    paths,
)
from eventonce.rules.instants import EARLIEST_EVENT, LATEST_EVENT, SECONDS_BELOW, instant
from eventonce.rules.keys import (
    EMPTY_HASHES,
    FORMAT,
    LONGEST_NAMELESS,
    NAMELESS,
    Hasher,
    blake2b,
    content_hash,
    encode,
    hasher,
    is_empty,
    key_of,
    packed,
)
from eventonce.rules.parts import (
    Extract,
    Incomplete,
    Part,
    Values,
    extractor,
    form_of,
    kind_of,
    missing,
    order_of,
    part,
    places_for,
)
from eventonce.rules.readings import Kind
from eventonce.rules.rule import Rule
from eventonce.types import Claim, Event

_WHOLE: Final = 16
_AFTER_TIME: Final = 12
"""Bytes of the digest: of a key that is only a digest, and of a key that begins with a time."""

_TIME_UNIT: Final = 10
"""Milliseconds: the time at the start of a key counts hundredths of a second, in four bytes. It
starts anew after 497 days; then keys of another time stand between, and nothing else changes."""

Hashes = Callable[..., Callable[[], blake2b]]
Claimer = Callable[[Event, int], Claim]
"""Makes an event's claim with this nonce; raises Incomplete if a part of the key is missing."""


class Key(msgspec.Struct, frozen=True):
    """A rule compiled with one list of parts: its own, an older one, or a fallback."""

    rule: Rule
    kind: Kind
    texts: tuple[str, ...]
    trees: tuple[Expression, ...]
    extract: Extract
    parts: tuple[Part, ...]
    plain: bool
    """Whether each part is a value of the event, unchanged if it is a text or an integer."""
    pick: Callable[[Values], Sequence[Any]] | None
    """Makes all parts at once, of a plain key unchecked. None if the values are the parts."""
    at: Callable[[Values], int | None] | None
    at_place: int | None
    """The index of the time among the values, if the time is a value of the event."""
    order: Callable[[Values], int] | None
    content: tuple[Part, ...]
    """The parts whose digest names the version of a state, or verifies a fact."""
    prefixed: bool
    """Whether the key begins with the fact's own time."""
    shared: bool
    """Whether all events of one HTTP request may have this key: then `event.part` is added."""
    sparse: bool
    """Whether every part may be empty."""


def compiled(rule: Rule, texts: Sequence[str], kind: Kind) -> Key:
    """Compile the rule with these parts as its key."""
    trees = tuple(parse(text) for text in texts)
    own = kind in ("fact", "state")
    order = parse(rule.order) if rule.order and own else None
    # A missing time does not make the event invalid.
    at = made_optional(parse(rule.at)) if rule.at and own else None
    content = content_trees(rule) if own or kind == "hash" else ()
    ignored = tuple(parse_path(text) for text in rule.ignore)
    places = places_for([*trees, *content, *(tree for tree in (order, at) if tree)], ignored)
    parts = tuple(part(tree, places, ignored) for tree in trees)
    prefixed = kind == "fact" and at is not None and _is_settled_by(at, trees)
    # A rule without a fallback key accepts any value.
    strict = rule.missing != "invalid"
    numbers = [places[tree.root, tree.steps] for tree in trees if isinstance(tree, Path)]
    plain = len(numbers) == len(trees)
    return Key(
        rule=rule,
        kind=kind,
        texts=tuple(texts),
        trees=trees,
        extract=extractor(tuple(places)),
        parts=parts,
        plain=plain,
        pick=_picker(numbers, len(places)) if plain else together(parts),
        at=_at(at, part(at, places), strict=strict and prefixed) if at else None,
        at_place=places[at.root, at.steps] if isinstance(at, Path) else None,
        order=_order(order, part(order, places), strict=strict) if order else None,
        content=tuple(part(tree, places, ignored) for tree in content),
        prefixed=prefixed,
        shared=kind == "fact" and _is_shared(trees),
        sparse=all(isinstance(tree, Hash) or paths(tree)[0].optional for tree in trees),
    )


def together(parts: Sequence[Part]) -> Callable[[Values], Sequence[Any]]:
    """Return one function that makes all these parts in one call."""
    return lambda values: [part(values) for part in parts]


def _picker(numbers: Sequence[int], count: int) -> Callable[[Values], Sequence[Any]] | None:
    if list(numbers) == list(range(count)):
        return None
    return (
        itemgetter(*numbers) if len(numbers) > 1 else itemgetter(slice(numbers[0], numbers[0] + 1))
    )


def content_trees(rule: Rule) -> tuple[Expression, ...]:
    """Return the expressions that tell the versions of a state apart, or verify a fact."""
    if rule.kind == "state":
        return tuple(parse(text) for text in rule.state or ("hash(body)",))
    texts = ("body",) if rule.verify is True else rule.verify or ()
    return tuple(Hash(made_optional(parse_path(text))) for text in texts)


def _is_settled_by(at: Expression, key: Sequence[Expression]) -> bool:
    """Whether all events with this key have the same instant, so that the key may begin with it."""
    if at in (made_optional(part) for part in key):
        return True
    plain = {(part.root, part.steps) for part in key if isinstance(part, Path)}
    return all((path.root, path.steps) in plain for path in paths(at))


def _is_shared(key: Sequence[Expression]) -> bool:
    """Whether the key reads headers, and besides them only source, type and organisation."""
    read = [path for tree in key for path in paths(tree)]
    return any(path.root == "headers" for path in read) and all(
        path.root == "headers" or (path.root == "event" and path.steps[0] not in ("id", "time"))
        for path in read
    )


def _order(tree: Expression, value_of: Part, *, strict: bool) -> Callable[[Values], int]:
    """Return the function for the order of a version. A strict one refuses a time that no event
    has, such as the year 1: it would make the newest version the oldest."""
    first, as_time = paths(tree)[0], isinstance(tree, Time)

    def order(values: Values) -> int:
        value = value_of(values)
        place = order_of(value)
        if place is None:
            absent = is_empty(value)
            reason = (
                f"{missing(value)}: a version needs its order"
                if absent
                else f"is {kind_of(value)}, neither a whole number below 2^53 nor an ISO time"
                f"{_as_time(tree, value)}"
            )
            raise Incomplete(first, reason, absent=absent, value=value)
        # A text with a hyphen inside is an ISO time.
        dated = strict and (as_time or (type(value) is str and "-" in value[1:]))
        if dated and not _is_event_time(place):
            raise Incomplete(first, f"is {kind_of(value)}, {_NO_EVENT_TIME}", value=value)
        return place

    return order


def _as_time(tree: Expression, value: Any) -> str:
    """Return advice if a number with a fraction, which is no version, may be a time."""
    at = instant(value)
    if at is None or not isinstance(tree, Path):
        return ""
    path = ".".join((tree.root, *tree.steps))
    form = "s" if at == instant(value, "s") else "ms"
    return f': write time({path}, "{form}") if it is a time'


def _at(tree: Expression, value_of: Part, *, strict: bool) -> Callable[[Values], int | None]:
    """Return the function for the event's own time, which may be None. A strict time is part of the
    key, and any other value is a missing part: the same text every day does not prove a copy."""
    form, first = form_of(tree), paths(tree)[0]

    def at(values: Values) -> int | None:
        try:
            value = value_of(values)
        except Incomplete as incomplete:
            if strict and not incomplete.absent:
                raise
            return None
        if is_empty(value):
            return None
        found = instant(value, form)
        if strict and not _is_event_time(found):
            raise Incomplete(first, f"is {kind_of(value)}, {_NO_EVENT_TIME}", value=value)
        return found

    return at


_NO_EVENT_TIME: Final = "not the time of an event (years 2000 to 9998)"


def _is_event_time(at: int | None) -> bool:
    return at is not None and EARLIEST_EVENT <= at <= LATEST_EVENT


# --- claims ---


class Keyring(msgspec.Struct, frozen=True):
    """The hashers of one secret, or of none."""

    secret: bytes
    """The secret as BLAKE2b takes it, empty for none."""
    digest: Hasher
    by: Hasher | None
    """None without a secret: then there is nothing to hide, and a checksum is quicker."""
    deliveries: Iterator[int]
    """Numbers for deliveries that have no id."""


def keyring(secret: bytes = b"") -> Keyring:
    """Return the hashers of this secret."""
    by = hasher(4, secret) if secret else None
    return Keyring(secret=key_of(secret), digest=hasher(8, secret), by=by, deliveries=count())


def claimer(key: Key, consumer: str, event: Event, keyring: Keyring) -> Claimer:
    """Return the function that makes the claims of this key, for events of the kind of `event`."""
    make = _always if key.kind == "run" else _by_parts
    claim = make(key, _hashes(key, consumer, event, keyring), keyring)
    keep = key.rule.keep_result
    if keep is None:
        return claim
    brief = min(int(keep), int(key.rule.remember))
    return lambda event, nonce: replace(claim(event, nonce), keep_result=brief)


def _by_parts(key: Key, fresh: Hashes, keyring: Keyring) -> Claimer:
    # Local names, because an attribute lookup for every event costs time.
    extract, plain, pick = key.extract, key.plain, key.pick
    prefixed, shared = key.prefixed, key.shared
    at_of, at_place, order_of, sparse = key.at, key.at_place, key.order, key.sparse
    look_closely, content_of = together(key.parts), together(key.content) if key.content else None
    digest_of, by_of, forced = keyring.digest, keyring.by, key.rule.on_replay == "force"
    lease, remember, attempts, sliding = _terms(key.rule)
    unchanged_within = int(key.rule.unchanged_within)
    whole, after_time = fresh(_WHOLE), fresh(_AFTER_TIME)
    joined, bare = forced or shared, content_of is None and order_of is None

    def claim(event: Event, nonce: int) -> Claim:  # noqa: PLR0912  a call costs more than a branch
        values = extract(event)
        parts = values if pick is None else pick(values)
        if plain:
            for value in parts:
                if type(value) is str:
                    if (
                        len(value) > LONGEST_NAMELESS or value not in NAMELESS
                    ) and not value.isspace():
                        continue
                elif type(value) is int:
                    continue
                # Only the expression knows whether this value may be a part.
                parts = look_closely(values)
                break
        at = None if at_place is None else values[at_place]
        if at_of is not None and not (type(at) is int and EARLIEST_EVENT <= at <= LATEST_EVENT):
            at = at_of(values)
        if prefixed and at is not None:
            # Copies have the same time, and keys of one moment are neighbours in a B-tree.
            start, hash_ = (at // _TIME_UNIT & 0xFFFFFFFF).to_bytes(4), after_time()
        else:
            start, hash_ = b"", whole()
            if sparse:
                _refuse_empty(key, parts)
        if joined:
            if forced and event.replay:
                hash_ = fresh(hash_.digest_size, event.replay)()
            if shared and event.part:
                parts = (*parts, event.part)
        try:
            hash_.update(packed(parts))
        except OverflowError:
            hash_.update(encode(parts))
        by = event.id.encode()
        if by:
            by = crc32(by).to_bytes(4) if by_of is None else by_of(by)
        key_ = start + hash_.digest()
        if bare:
            return Claim(key_, nonce, lease, remember, attempts, by, sliding, b"", None, at or 0)
        order = None if order_of is None else order_of(values)
        if order is not None and at is None and order >= SECONDS_BELOW:
            # An order of this size is a time in milliseconds.
            at = order
        content = b"" if content_of is None else digest_of(encode(content_of(values)))
        within = 0 if at is None else unchanged_within
        return Claim(
            key_, nonce, lease, remember, attempts, by, sliding, content, order, at or 0, within
        )

    return claim


def _always(key: Key, fresh: Hashes, keyring: Keyring) -> Claimer:
    """Return a function whose claims never share a key, so that each delivery runs: the event has
    no part for a key. A source that delivers again by itself gives the delivery an id, by which its
    attempts are counted. The key never comes again, so it is remembered for a lease at the most.
    """
    whole, deliveries = fresh(_WHOLE), keyring.deliveries
    lease, remember, attempts, sliding = _terms(key.rule)

    def claim(event: Event, nonce: int) -> Claim:
        hash_ = whole()
        hash_.update(packed(event.delivery or f"{nonce}-{next(deliveries)}"))
        return Claim(hash_.digest(), nonce, lease, min(remember, lease), attempts, b"", sliding)

    return claim


def _hashes(key: Key, consumer: str, event: Event, keyring: Keyring) -> Hashes:
    """Return a function that makes hashes, by size and replay, which already contain consumer,
    organisation and type. A scope is in a list, so that it differs from every type.

    These values are the same for all events of a kind, so they are hashed once, into BLAKE2b's
    personalisation, which is meant to separate uses.
    """
    scope = key.rule.scope if key.kind in ("fact", "state") else ""
    header = (FORMAT, key.kind, consumer, event.org, [scope] if scope else event.type)

    def fresh(size: int, replay: str = "") -> Callable[[], blake2b]:
        person = content_hash(encode((*header, replay)))
        # Copying a hash is quicker than making one.
        return blake2b(digest_size=size, key=keyring.secret, person=person).copy

    return fresh


def _terms(rule: Rule) -> tuple[int, int, int, bool]:
    """Return the terms of every claim of a rule, as plain `int`: some stores accept only these."""
    return int(rule.lease), int(rule.remember), rule.attempts, rule.sliding


def _refuse_empty(key: Key, parts: Sequence[Any]) -> None:
    """Refuse a key without any value: every event of the type would share it."""
    if all(is_empty(part) or part == [] or _is_empty_hash(part) for part in parts):
        raise Incomplete(paths(key.trees[0])[0], "is empty, and so is the whole key")


def _is_empty_hash(part: Any) -> bool:
    return type(part) is bytes and part in EMPTY_HASHES
