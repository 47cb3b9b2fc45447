"""Letters: each kept once, whole, and read oldest first."""

from __future__ import annotations

import random
import secrets
from itertools import islice
from typing import Final

from msgspec.structs import replace

from eventonce.testing.cases.samples import EPOCH, EVERY_BYTE, new_consumer, new_keys, new_letters
from eventonce.testing.factory import StoreFactory, admin_of, opened
from eventonce.types import Letter

MANY: Final = 1_200
"""A number of letters greater than a store reads at once."""


def a_letter_comes_back_whole(factory: StoreFactory) -> None:
    """Every field, to the byte and the accent."""
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
    """Within a call and across calls the first one stays as it is."""
    with opened(factory) as store:
        admin = admin_of(store)
        (letter,) = new_letters(1)
        admin.put_letters([letter, replace(letter, reason="again")])
        admin.put_letters([replace(letter, reason="and again", at=EPOCH + 1)])
        admin.put_letters([])
        assert list(admin.letters(letter.consumer)) == [letter]
        assert admin.letter(letter.id) == letter


def letters_are_read_oldest_first(factory: StoreFactory) -> None:
    """By the instant they carry, whatever order they were put in; all of them, or a few."""
    with opened(factory) as store:
        admin = admin_of(store)
        letters = new_letters(MANY)
        shuffled = random.Random(1).sample(letters, MANY)
        for start in range(0, MANY, 500):
            admin.put_letters(shuffled[start : start + 500])
        consumer = letters[0].consumer
        assert list(islice(admin.letters(consumer), 3)) == letters[:3]
        assert list(admin.letters(consumer)) == letters
        everyones = [letter for letter in admin.letters() if letter.consumer == consumer]
        assert everyones == letters


def each_consumer_has_its_own_letters(factory: StoreFactory) -> None:
    """One consumer's name is not another's because it begins alike or reads as a pattern."""
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
    """As a redrive does: each is met once, though the store empties under the reader."""
    with opened(factory) as store:
        admin = admin_of(store)
        letters = new_letters(MANY)
        admin.put_letters(letters)
        consumer = letters[0].consumer
        met = []
        for letter in admin.letters(consumer):
            met.append(letter)
            assert admin.drop_letters([letter.id]) == 1
        assert met == letters
        assert list(admin.letters(consumer)) == []


def a_dropped_letter_is_gone(factory: StoreFactory) -> None:
    """And the answer says how many there were; one that comes again is put again."""
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


def a_letter_outlives_its_handle(factory: StoreFactory) -> None:
    """What was put is in the store."""
    letters = new_letters(3)
    with opened(factory) as store:
        admin_of(store).put_letters(letters)
    with opened(factory) as store:
        assert list(admin_of(store).letters(letters[0].consumer)) == letters
