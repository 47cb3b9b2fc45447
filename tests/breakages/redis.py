"""Breakages of the law as Redis has it: words of a Lua script replaced, and a promise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from eventonce.stores.redis import RedisStore, codec
from eventonce.testing.cases import admin as cases
from eventonce.testing.cases import law
from eventonce.testing.cases.samples import DAY, EPOCH, MINUTE
from eventonce.testing.cases.steps import Ask, Ending, Settle, play
from eventonce.testing.contract import HOLES, StoreFactory
from eventonce.types import Claim
from tests.breakages.breakage import Breakage, Patch, replaced
from tests.integration import test_redis_law, test_redis_records
from tests.servers.valkey import Node

Promise = Callable[[Node, RedisStore], None]


def the_holes(_: Node, store: RedisStore) -> None:
    """Every program that the law, or another library, once got wrong."""
    for program in HOLES.values():
        play(program, store)


def the_short_ways(_: Node, store: RedisStore) -> None:
    """The edges at which a script leaves the short way."""
    for name, test in vars(test_redis_law).items():
        if (
            name.startswith("test_")
            and name != "test_settlements_at_the_end_of_a_lease_or_record_follow_the_law"
        ):
            test(store)
    for action in test_redis_law.ACTIONS:
        for end in ("held_until", "expires"):
            test_redis_law.test_settlements_at_the_end_of_a_lease_or_record_follow_the_law(
                store, action, end
            )


def the_programs(node: Node, _: RedisStore) -> None:
    """Random programs."""
    law.every_answer_is_the_laws(_factory(node), shrink=False)


def an_earlier_state(_: Node, store: RedisStore) -> None:
    """A newer version, of the same content, of an earlier time."""

    def version(order: int, at: int) -> Ask:
        known = Claim(b"s1", 0, MINUTE, DAY, 3, digest=b"A", order=order, at=at)
        return Ask((replace(known, unchanged_within=10 * MINUTE),))

    play([version(1, EPOCH + MINUTE), Settle((Ending("complete"),)), version(2, EPOCH)], store)


def the_fields_of_the_next_release(node: Node, store: RedisStore) -> None:
    for make in test_redis_records.MAKERS:
        test_redis_records.test_bytes_that_the_next_release_adds_are_ignored_and_kept(
            node, store, make
        )


def a_lease_longer_than_the_memory(node: Node, store: RedisStore) -> None:
    test_redis_records.test_a_lease_longer_than_the_memory_keeps_its_record(node, store)


def a_cleared_result(node: Node, _: RedisStore) -> None:
    cases.a_result_is_cleared_and_its_record_stays(_factory(node))


def a_letter_dropped_for_its_age(node: Node, _: RedisStore) -> None:
    cases.a_letter_that_was_kept_anew_is_not_dropped_for_its_age(_factory(node))


def _factory(node: Node) -> StoreFactory:
    return StoreFactory(partial(RedisStore.from_uri, node.uri), sweeps=False, own_clock=True)


def bent(script: str, old: str, new: str) -> Callable[[Patch], None]:
    """The scripts with these words replaced in one of their files."""

    def plant(patch: Patch) -> None:
        records = codec._RECORDS
        names = ("claim", "settle", "show", "clear", "letters")
        sources = {name: codec._source(name) for name in names}
        if script == "records":
            records = replaced(records, old, new)
        else:
            sources[script] = replaced(sources[script], old, new)
        patch.setattr(codec, "CLAIM", codec._script(records, sources["claim"]))
        settle = codec._script(codec._EVEN_IF_FULL, records, sources["settle"])
        patch.setattr(codec, "SETTLE", settle)
        patch.setattr(codec, "SHOW", codec._script(records, sources["show"]))
        clear = codec._script(codec._EVEN_IF_FULL, records, sources["clear"])
        patch.setattr(codec, "CLEAR", clear)
        patch.setattr(codec, "LETTERS", codec._script(sources["letters"]))

    return plant


Words = tuple[tuple[str, str, str, Promise], ...]
"""The planted behaviour, the words, their replacement, and the promise that fails."""

CLAIM_LAW: Final[Words] = (
    ("a token may return", "max(r.token + 1, now * 1000)", "r.token + 1", the_holes),
    ("a token may go back", "max(r.token + 1, now * 1000)", "now * 1000", the_short_ways),
    ("a dirty state is called unchanged", "not r.dirty and", "", the_holes),
    ("a tie is stale", "c.order < r.order then", "c.order <= r.order then", the_holes),
    (
        "an older version waits for a newer one that was given up",
        "if now < till and #r.dead == 0 then",
        "if now < till then",
        the_holes,
    ),
    ("a lost reply locks its owner out", "if r.nonce ~= t.nonce then", "if true then", the_holes),
    (
        "a sliding window may shrink",
        "if not t.sliding or r.expires >= now + t.remember then",
        "if not t.sliding then",
        the_short_ways,
    ),
    (
        "a tie forgets the given-up versions",
        "c.order == r.tried and records.without(r.dead, c.digest) or {}",
        "{}",
        the_holes,
    ),
    ("an earlier state is called unchanged", "and between >= 0 and", "and", an_earlier_state),
    ("a peek is a claim", "if t.peek then", "if false then", the_programs),
    (
        "attempts are forgotten with the window",
        "max(r.expires, now + max(t.remember, UNSETTLED))",
        "max(r.expires, now + t.remember)",
        the_holes,
    ),
    (
        "a tie answers with another version's result",
        "if not c.order or c.digest == r.digests[#r.digests] then",
        "if true then",
        the_holes,
    ),
    (
        "an unchanged version keeps the ties before it",
        "r.order, r.by, r.digests = c.order, c.by, {c.digest}",
        "r.order, r.by = c.order, c.by",
        the_holes,
    ),
    (
        "an unchanged version shortens the memory",
        "r.expires = max(r.expires, now + t.remember)",
        "r.expires = now + t.remember",
        the_holes,
    ),
    (
        "a stale version waits for the lease",
        "if c.order < r.order then",
        "if c.order < r.order and now >= r.held_until then",
        the_holes,
    ),
)

CLAIM: Final[Words] = (
    ("a copy stays a copy for ever", "if now < expires and (digest", "if (digest", the_short_ways),
    (
        "other content is a copy",
        "if now < expires and (digest == content or digest == '' or content == '') then",
        "if now < expires then",
        the_short_ways,
    ),
    (
        "no window slides",
        "byte(raw) == DONE) and flags % 4 < 2 then",
        "byte(raw) == DONE) then",
        the_short_ways,
    ),
    (
        "every copy has another transport id",
        "by == winner and SAME_ID or OTHER_ID",
        "OTHER_ID",
        the_short_ways,
    ),
    (
        "a new fact's attempts are forgotten",
        "now + max(remember, UNSETTLED)",
        "now + remember",
        the_short_ways,
    ),
    (
        "a batch has the terms of its first claim",
        "if number ~= terms then",
        "if not terms then",
        the_short_ways,
    ),
)

SETTLE: Final[Words] = (
    ("any token completes a fact", "if latest == token and", "if", the_holes),
    (
        "an expired record is completed",
        "(now < expires or now < held_until)",
        "true",
        the_short_ways,
    ),
    ("any token settles", "if r.token ~= t.token then return FENCED, false end", "", the_holes),
    ("a completed run is released", "if r.done then return FENCED, false end", "", the_programs),
    (
        "a buried run is released",
        "frees and not records.among(r.dead, s.digest) and KEPT",
        "frees and KEPT",
        the_programs,
    ),
    (
        "a renewal shortens a lease",
        "r.held_until = max(now + t.lease, records.cut_down(r.held_until, t.lease, now))",
        "r.held_until = now + t.lease",
        the_short_ways,
    ),
    (
        "a completion forgets the versions given up beside it",
        "(#r.dead > 0 and max(t.remember, UNSETTLED) or t.remember)",
        "t.remember",
        the_short_ways,
    ),
    (
        "a completion drops the fields that the next release added",
        "if #raw > known then value = value .. sub(raw, known + 1) end",
        "",
        the_fields_of_the_next_release,
    ),
)

RECORDS: Final[Words] = (
    (
        "a change drops the fields that the next release added",
        "r.extra = sub(raw, after)",
        "",
        the_fields_of_the_next_release,
    ),
    (
        "a record leaves before its lease",
        "'PXAT', max(r.expires, r.held_until)",
        "'PXAT', r.expires",
        a_lease_longer_than_the_memory,
    ),
    ("a long run is packed too short", "rest < 65536 then", "rest < 655360 then", the_short_ways),
    ("a token is rounded", "if at % 1 == 0 and at >= 0", "if at >= 0", the_short_ways),
    ("one tie too many is remembered", "KEPT_DIGESTS + 2", "KEPT_DIGESTS + 1", the_holes),
)

ADMIN: Final = (
    ("clear", "a result is not cleared", "r.result = false", "", a_cleared_result),
    ("clear", "a record without a result is counted", "r and r.result", "r", a_cleared_result),
    (
        "letters",
        "a dead letter is dropped at any age",
        "before)",
        "9e15)",
        a_letter_dropped_for_its_age,
    ),
)

BREAKAGES: Final = tuple(
    Breakage(f"redis: {name}", bent(script, old, new), promise)
    for script, words in (
        ("claim", (*CLAIM_LAW, *CLAIM)),
        ("settle", SETTLE),
        ("records", RECORDS),
    )
    for name, old, new, promise in words
) + tuple(
    Breakage(f"redis: {name}", bent(script, old, new), promise)
    for script, name, old, new, promise in ADMIN
)
