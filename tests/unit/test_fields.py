"""The volatile fields and the key that are learned from events alone: events that are only similar
are not taken for copies."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eventonce.study import fields
from eventonce.study.arrivals import instant
from eventonce.study.fields import Learned, Sample, content_of, differing, learn, leaves_of
from eventonce.study.learning import _chosen

START = 1_794_787_200_000
Detail = dict[str, Any]


def learned(details: Iterator[tuple[int, Detail]]) -> Learned:
    """The fields learned from events that arrive at these instants, each under its own id."""
    return learn(
        [
            Sample(
                number, number, START + at, {f"detail.{name}": value for name, value in it.items()}
            )
            for number, (at, it) in enumerate(details)
        ]
    )


def trace(chance: random.Random) -> str:
    return f"{chance.getrandbits(64):016x}"


def calls(
    seed: int, *, copies: float, **fields: Callable[[random.Random], Any]
) -> Iterator[tuple[int, Detail]]:
    """Calls with several events each, some of which are published again with a new trace."""
    chance = random.Random(seed)
    at = 0
    for call in range(300):
        for _ in range(chance.randrange(1, 6)):
            at += chance.randrange(2_000, 9_000)
            detail = {
                "call": f"call-{call}",
                "at": START + at - 400,
                "status": chance.choice(("ringing", "held", "connected")),
                **{name: value(chance) for name, value in fields.items()},
            }
            yield at, {**detail, "trace": trace(chance), "sent": START + at}
            if chance.random() < copies:
                later = at + chance.randrange(100, 40_000)
                yield later, {**detail, "trace": trace(chance), "sent": START + later}


def test_the_key_is_the_call_and_its_time_and_the_volatile_fields_are_named() -> None:
    found = learned(calls(1, copies=0.1))
    assert found.volatile == {"detail.trace", "detail.sent"}
    assert set(found.key) == {"detail.call", "detail.at"}
    assert {field.path: field.role for field in found.fields}["detail.trace"] == "volatile"


def test_a_number_that_is_too_large_for_a_time_is_a_constant() -> None:
    found = learned(calls(1, copies=0.1, large=lambda _: 10**400))
    assert {field.path: field.role for field in found.fields}["detail.large"] == "constant"


def test_the_number_of_compared_pairs_does_not_depend_on_the_number_of_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = Counter[int]()
    for many in (1, 60):

        def counted(*pair: Sample, many: int = many) -> frozenset[str]:
            compared[many] += 1
            return differing(*pair)

        monkeypatch.setattr(fields, "differing", counted)
        learned(calls(1, copies=0.1, **{f"f{n}": lambda _: "x" for n in range(many)}))
    assert compared[1] == compared[60] > 0


def test_events_without_copies_give_no_key_and_no_volatile_fields() -> None:
    found = learned(calls(2, copies=0.0))
    assert (found.key, found.volatile) == ((), frozenset())


def test_a_heartbeat_that_returns_is_not_a_copy() -> None:
    def beats() -> Iterator[tuple[int, Detail]]:
        chance = random.Random(3)
        for beat in range(2_000):
            at = beat * 1_000
            yield (
                at,
                {"device": f"d{chance.randrange(400)}", "at": START + at, "trace": trace(chance)},
            )

    assert learned(beats()).key == ()


def test_the_creation_time_of_an_entity_proves_no_copy() -> None:
    def changes() -> Iterator[tuple[int, Detail]]:
        chance = random.Random(4)
        at = 0
        for order in range(500):
            created = START + at
            for _ in range(4):
                at += chance.randrange(60_000, 900_000)
                detail = {"order": f"o{order}", "created": created, "status": "open"}
                yield at, {**detail, "changed": START + at, "trace": trace(chance)}

    assert learned(changes()).key == ()


def test_a_version_that_several_events_share_is_no_counter() -> None:
    def changes() -> Iterator[tuple[int, Detail]]:
        chance = random.Random(5)
        at = 0
        for order in range(500):
            for step in range(6):
                at += chance.randrange(2_000, 9_000)
                detail = {"order": f"o{order}", "schema": 1 + step // 3, "status": "open"}
                yield at, {**detail, "at": START + at, "trace": trace(chance)}

    assert learned(changes()).key == ()


def test_a_flag_that_differs_between_two_facts_of_the_same_time_is_not_volatile() -> None:
    """Disconnected comes twice, before and after the last work, with the same time."""

    def ends() -> Iterator[tuple[int, Detail]]:
        chance = random.Random(6)
        for call in range(600):
            at = call * 5_000
            detail = {"call": f"call-{call}", "at": START + at, "status": "Disconnected"}
            for late, final in ((0, False), (700, True)):
                sent = {"trace": trace(chance), "sent": START + at + late}
                yield at + late, {**detail, "final": final, **sent}

    found = learned(ends())
    assert "detail.final" not in found.volatile
    assert not found.key or "detail.final" in found.key


def test_a_count_of_publications_is_volatile() -> None:
    def published() -> Iterator[tuple[int, Detail]]:
        chance = random.Random(7)
        for at, detail in calls(7, copies=0.0):
            yield at, {**detail, "attempt": 1}
            if chance.random() < 0.1:
                again = {"attempt": 2, "trace": trace(chance), "sent": START + at + 9_000}
                yield at + 9_000, {**detail, **again}

    found = learned(published())
    assert found.volatile == {"detail.trace", "detail.sent", "detail.attempt"}
    assert set(found.key) == {"detail.call", "detail.at"}


@pytest.mark.parametrize("seed", range(3))
def test_identical_copies_are_keyed_by_their_content(seed: int) -> None:
    def twice() -> Iterator[tuple[int, Detail]]:
        for at, detail in calls(seed, copies=0.0):
            yield at, detail
            if at % 7 == 0:
                yield at + 90, detail

    found = learned(twice())
    assert (found.key, found.volatile) == (("hash(detail)",), frozenset())


@pytest.mark.parametrize("name", ["call?", "my call", "call(1)", '"call"'])
def test_a_field_that_no_rule_can_name_is_no_part_of_a_key(name: str) -> None:
    """`call?` in a rule is a field `call` that may be missing."""

    def renamed() -> Iterator[tuple[int, Detail]]:
        for at, detail in calls(8, copies=0.1):
            yield at, {name if key == "call" else key: value for key, value in detail.items()}

    found = learned(renamed())
    assert f"detail.{name}" not in found.key
    assert found.volatile == {"detail.trace", "detail.sent"}


def test_numbers_with_the_same_python_hash_are_different_values() -> None:
    """-1 has the hash of -2: two legs of one moment must not look like one event."""

    def legs() -> Iterator[tuple[int, Detail]]:
        for call in range(300):
            at = call * 5_000
            for leg in (-1, -2):
                told = {"call": f"call-{call}", "leg": leg, "at": START + at}
                yield at + 100, {**told, "sent": START + at + 100}
                if call % 4 == 0:
                    yield at + 70_000, {**told, "sent": START + at + 70_000}

    assert learned(legs()).key == ("detail.call", "detail.leg")


def test_1_and_1_0_are_the_same_value_and_true_is_another() -> None:
    whole, written, flag = (
        content_of(leaves_of(detail)) for detail in (b'{"a": 1}', b'{"a": 1.0}', b'{"a": true}')
    )
    assert whole == written != flag


def test_the_type_separates_events_that_share_an_id_and_a_time() -> None:
    samples: list[Sample] = []
    for number in range(2_000):
        thing, kind = divmod(number, 5)
        told: Detail = {"type": f"type-{kind}", "detail.id": f"id-{thing}"}
        told["detail.at"] = START + thing * 900
        again = (0, 70_000) if number % 9 == 0 else (0,)
        for delay in again:
            sent = START + thing * 900 + delay
            samples.append(Sample(len(samples), len(samples), sent, {**told, "detail.sent": sent}))
    assert learn(samples).key == ("detail.id",)


def test_the_same_events_are_chosen_in_every_run() -> None:
    assert [number for number in range(40) if _chosen(f"call-{number}", 8)] == [5, 14, 25, 32]


@pytest.mark.parametrize("text", ["2026-11-16 00:00:00+00", "20261116T000000Z"])
def test_a_time_that_another_tool_has_spelled_anew_is_a_time(text: str) -> None:
    assert instant(text) == START


def test_a_time_without_an_offset_is_in_utc_on_every_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a key: a diagnosis does not depend on the time zone of the machine."""
    monkeypatch.setenv("TZ", "America/New_York")
    instant.cache_clear()
    time.tzset()
    try:
        assert instant("2026-11-16T00:00:00") == START
        assert fields.instant_of("2026-11-16T00:00:00") == START
        assert fields.instant_of("2026-11-16T00:00:00-05:00") == START + 5 * 3_600_000
    finally:
        monkeypatch.undo()
        time.tzset()
