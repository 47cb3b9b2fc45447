"""The functions beside claim and settle: records shown, forgotten, swept and counted; dead letters
stored once and complete, and read oldest first; names of consumers."""

from __future__ import annotations

import random
import secrets
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Barrier
from typing import Final
from unittest import SkipTest

from msgspec.structs import replace

from eventonce.core import ledger
from eventonce.core.ports import Store, StoreNames, offers
from eventonce.testing.cases.samples import (
    DAY,
    EPOCH,
    EVERY_BYTE,
    SECOND,
    fact,
    new_consumer,
    new_keys,
    new_letters,
    settlements,
    version,
)
from eventonce.testing.factory import StoreFactory, admin_of, opened
from eventonce.types import Claim, Letter, Settlement

SWEEP_STEP: Final = 7
EXPIRED_KEYS: Final = 40
LIVE_KEYS: Final = 30


def a_record_is_shown_as_the_law_has_it(factory: StoreFactory) -> None:
    """Before its claim there is no record; a peek makes none."""
    with opened(factory) as store:
        admin = admin_of(store)
        (key,) = new_keys(1)
        assert admin.show(key) is None
        claim = fact(key, by=b"here", digest=b"\x00content")
        verdict, record = ledger.judge(None, claim, EPOCH)
        assert store.claim([claim], now=EPOCH) == [verdict]
        assert admin.show(key) == record
        settlement = Settlement(claim, verdict.token, "complete", b"result")
        _, record = ledger.settle(record, settlement, EPOCH)
        assert store.settle([settlement], now=EPOCH) == ["kept"]
        assert admin.show(key) == record


def an_expired_record_is_not_shown(factory: StoreFactory) -> None:
    """By the store's own clock, swept or not: this record expired in 2001."""
    with opened(factory) as store:
        (key,) = new_keys(1)
        claim = fact(key, remember=SECOND)
        long_ago = 1_000_000_000_000
        (run,) = store.claim([claim], now=long_ago)
        store.settle([Settlement(claim, run.token, "complete")], now=long_ago)
        assert admin_of(store).show(key) is None


def a_forgotten_key_is_new_again(factory: StoreFactory) -> None:
    """A key is forgotten whatever its record holds; the answer is the number of records."""
    with opened(factory) as store:
        admin = admin_of(store)
        held, done, kept = keys = new_keys(3)
        claims = [fact(key) for key in keys]
        runs = store.claim(claims, now=EPOCH)
        ended = [Settlement(claims[1], runs[1].token, "complete")]
        assert store.settle(ended, now=EPOCH) == ["kept"]
        assert admin.forget([held, *new_keys(2), done]) == 2
        assert admin.forget([held]) == 0
        assert admin.forget([]) == 0
        assert admin.show(held) is None
        verdicts = store.claim([fact(key) for key in (held, done, kept)], now=EPOCH + 1)
        assert [verdict.kind for verdict in verdicts] == ["run", "run", "busy"]
        assert [verdict.attempt for verdict in verdicts[:2]] == [1, 1]
        late = Settlement(claims[0], runs[0].token, "complete")
        assert store.settle([late], now=EPOCH + 1) == ["fenced"]


def a_result_is_cleared_and_its_record_stays(factory: StoreFactory) -> None:
    """Of facts, and of a subject whose next version runs; a copy is a duplicate without result."""
    with opened(factory) as store:
        admin = admin_of(store)
        done, plain, subject, kept = new_keys(4)
        claims = [
            fact(done, by=b"here", digest=b"content"),
            fact(plain),
            version(subject, 1, digest=b"first"),
            fact(kept),
        ]
        runs = store.claim(claims, now=EPOCH)
        ended = settlements(claims, runs, [b"words", None, b"names", b"stay"])
        assert store.settle(ended, now=EPOCH) == ["kept"] * 4
        newer = version(subject, 2, digest=b"second")
        (run,) = store.claim([newer], now=EPOCH)
        asked = [subject, done, plain, *new_keys(1)]
        before = [admin.show(key) for key in asked]
        assert admin.clear_results(asked) == 2
        assert admin.clear_results(asked) == 0
        assert admin.clear_results([]) == 0
        assert [admin.show(key) for key in asked] == [
            record and replace(record, result=None) for record in before
        ]
        copies = [replace(claim, nonce=claim.nonce + 1) for claim in claims]
        verdicts = store.claim([copies[0], copies[1], copies[3]], now=EPOCH + 1)
        assert [it.kind for it in verdicts] == ["duplicate"] * 3
        assert [it.result for it in verdicts] == [None, None, b"stay"]
        assert store.settle([Settlement(newer, run.token, "complete")], now=EPOCH + 1) == ["kept"]


def a_sweep_goes_through_everything_in_small_steps(factory: StoreFactory) -> None:
    """A step checks no more records than its limit; after some steps all expired ones are gone."""
    if not factory.sweeps:
        raise SkipTest("the server deletes expired records")
    with opened(factory) as store:
        admin = admin_of(store)
        later = EPOCH + SECOND
        there = admin.stats().records if factory.counts else 10_000
        expired, live = new_keys(EXPIRED_KEYS), new_keys(LIVE_KEYS)
        _complete(store, [fact(key, remember=2 * SECOND) for key in live[::2]])
        store.claim([fact(key) for key in live[1::2]], now=EPOCH)
        _complete(store, [fact(key, remember=SECOND) for key in expired])
        # One round may have begun before these records existed; the next one finds them all.
        steps = 2 * ((there + EXPIRED_KEYS + LIVE_KEYS) // SWEEP_STEP + 2)
        swept = [admin.sweep(SWEEP_STEP, now=later) for _ in range(steps)]
        assert all(0 <= step <= SWEEP_STEP for step in swept)
        assert sum(swept) >= EXPIRED_KEYS
        assert admin.forget(expired) == 0
        assert admin.forget(live) == LIVE_KEYS


def stats_count_records_and_letters(factory: StoreFactory) -> None:
    """The count is exact if the store can do so, and never below zero."""
    with opened(factory) as store:
        admin = admin_of(store)
        before = admin.stats()
        assert min(before.records, before.letters, before.bytes or 0) >= 0
        if not factory.counts:
            return
        keys, letters = new_keys(5), new_letters(3)
        store.claim([fact(key) for key in keys], now=EPOCH)
        admin.put_letters(letters)
        filled = admin.stats()
        assert (filled.records, filled.letters) == (before.records + 5, before.letters + 3)
        admin.forget(keys[:2])
        admin.drop_letters([letters[0].id])
        emptied = admin.stats()
        assert (emptied.records, emptied.letters) == (before.records + 3, before.letters + 2)


def _complete(store: Store, claims: list[Claim]) -> None:
    runs = store.claim(claims, now=EPOCH)
    ended = settlements(claims, runs)
    assert store.settle(ended, now=EPOCH) == ["kept"] * len(claims)


def names_are_kept_once_beside_the_records(factory: StoreFactory) -> None:
    """In every handle, and for ever: names are not records, and no sweep deletes them."""
    name = new_consumer()
    names = [name, f"{name} 'é\N{ALARM CLOCK}%", name[:-1]]
    with opened(factory) as store:
        admin, listed = admin_of(store), _with_names(store)
        before = admin.stats().records
        assert name not in listed.names()
        for one in (*names, name):
            listed.add_name(one)
        if factory.counts:
            assert admin.stats().records == before
        admin.sweep(now=EPOCH + 10_000 * DAY)
    with opened(factory) as store:
        found = _with_names(store).names()
        assert sorted(one for one in found if one.startswith(name[:-1])) == sorted(names)


def names_that_are_added_at_the_same_moment_are_all_kept(factory: StoreFactory) -> None:
    """Each by its own handle, like many processes that start at once."""
    names = [new_consumer() for _ in range(8)]
    together = Barrier(len(names))

    def add(name: str) -> None:
        with opened(factory) as store:
            listed = _with_names(store)
            together.wait()
            listed.add_name(name)

    with opened(factory) as store:
        listed = _with_names(store)
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(add, names))
        assert sorted(set(listed.names()) & {*names}) == sorted(names)


def _with_names(store: Store) -> StoreNames:
    if not offers(store, StoreNames):
        raise SkipTest("the store keeps no names")
    return store


MANY_LETTERS: Final = 1_200
"""More dead letters than a store reads at once."""


def a_letter_comes_back_whole(factory: StoreFactory) -> None:
    """Every field, with all bytes and accents."""
    with opened(factory) as store:
        admin = admin_of(store)
        (key,) = new_keys(1)
        letter = Letter(
            id=f"ключ/{secrets.token_hex(8)}",
            consumer=new_consumer(),
            status="dead",
            reason="la règle n'a pas voulu: 'non'\n\ttrop tard \N{ALARM CLOCK}",
            rule='genesys@1 "conversation.{id}"',
            key=key,
            event=EVERY_BYTE * 256,
            at=EPOCH,
            attempt=5,
        )
        empty = replace(
            letter, id=f"{letter.id}-", reason="", rule="", key=b"", event=b"", attempt=0
        )
        admin.put_letters([letter, empty])
        assert admin.letter(letter.id) == letter
        assert admin.letter(empty.id) == empty
        assert list(admin.letters(letter.consumer)) in ([letter, empty], [empty, letter])


def a_letter_put_twice_is_one_letter(factory: StoreFactory) -> None:
    """Within a call and across calls the first dead letter is not changed."""
    with opened(factory) as store:
        admin = admin_of(store)
        (letter,) = new_letters(1)
        admin.put_letters([letter, replace(letter, reason="again")])
        admin.put_letters([replace(letter, reason="and again", at=EPOCH + 1)])
        admin.put_letters([])
        assert list(admin.letters(letter.consumer)) == [letter]
        assert admin.letter(letter.id) == letter


def letters_are_read_oldest_first(factory: StoreFactory) -> None:
    """By their instants, whatever the order of their calls; all of them, or a few."""
    with opened(factory) as store:
        admin = admin_of(store)
        letters = new_letters(MANY_LETTERS)
        shuffled = random.Random(1).sample(letters, MANY_LETTERS)
        for start in range(0, MANY_LETTERS, 500):
            admin.put_letters(shuffled[start : start + 500])
        consumer = letters[0].consumer
        assert list(islice(admin.letters(consumer), 3)) == letters[:3]
        assert list(admin.letters(consumer)) == letters
        everyones = [letter for letter in admin.letters() if letter.consumer == consumer]
        assert everyones == letters


def each_consumer_has_its_own_letters(factory: StoreFactory) -> None:
    """A consumer is found by its exact name: not by a prefix, and not by a pattern."""
    with opened(factory) as store:
        admin = admin_of(store)
        (letter,) = new_letters(1)
        names = [letter.consumer, f"{letter.consumer}x", f"{letter.consumer[:-1]}%", "%", "*"]
        theirs = [
            replace(letter, id=secrets.token_hex(8), consumer=name, at=EPOCH + place)
            for place, name in enumerate(names)
        ]
        admin.put_letters(theirs)
        for name, expected in zip(names[:3], theirs, strict=False):
            assert list(admin.letters(name)) == [expected]
        ids = {it.id for it in theirs}
        assert [it for it in admin.letters() if it.id in ids] == theirs
        assert list(admin.letters(new_consumer())) == []


def letters_may_be_dropped_while_they_are_read(factory: StoreFactory) -> None:
    """As in a redrive: each is read once, although they are dropped meanwhile."""
    with opened(factory) as store:
        admin = admin_of(store)
        letters = new_letters(MANY_LETTERS)
        admin.put_letters(letters)
        consumer = letters[0].consumer
        met = []
        for letter in admin.letters(consumer):
            met.append(letter)
            assert admin.drop_letters([letter.id]) == 1
        assert met == letters
        assert list(admin.letters(consumer)) == []


def a_dropped_letter_is_gone(factory: StoreFactory) -> None:
    """The answer is the number that existed; a dropped dead letter can be stored again."""
    with opened(factory) as store:
        admin = admin_of(store)
        first, second, third = letters = new_letters(3)
        admin.put_letters(letters)
        assert admin.drop_letters([first.id, third.id, secrets.token_hex(8)]) == 2
        assert admin.drop_letters([first.id]) == 0
        assert admin.drop_letters([]) == 0
        assert admin.letter(first.id) is None
        assert list(admin.letters(first.consumer)) == [second]
        admin.put_letters([first])
        assert list(admin.letters(first.consumer)) == [first, second]


def a_letter_that_was_kept_anew_is_not_dropped_for_its_age(factory: StoreFactory) -> None:
    """A redrive stores it again under the same id, with a later instant."""
    with opened(factory) as store:
        admin = admin_of(store)
        old, renewed, young = letters = new_letters(3)
        admin.put_letters(letters)
        bound = young.at
        admin.drop_letters([renewed.id])
        admin.put_letters([replace(renewed, at=bound)])
        assert admin.drop_letters([it.id for it in letters], before=bound) == 1
        assert {it.id for it in admin.letters(old.consumer)} == {renewed.id, young.id}
        assert admin.drop_letters([secrets.token_hex(8)], before=bound) == 0


def a_letter_outlives_its_handle(factory: StoreFactory) -> None:
    """A dead letter is in the store, not in the handle that stored it."""
    letters = new_letters(3)
    with opened(factory) as store:
        admin_of(store).put_letters(letters)
    with opened(factory) as store:
        assert list(admin_of(store).letters(letters[0].consumer)) == letters
