"""The order in which the records of FIFO groups may be tried."""

from __future__ import annotations

import random

from eventonce.runtime.fifo import Groups


def group(record: str) -> str:
    """The letter before the number; a number alone has no group."""
    return record.rstrip("0123456789")


def test_the_first_records_of_all_groups_come_before_the_second_records() -> None:
    groups = Groups(["a1", "b1", "a2", "a3", "b2"], group)
    rows = []
    while groups:
        row = groups.take(100)
        rows.append(row)
        for record in row:
            groups.settled(record)
    assert rows == [["a1", "b1"], ["a2", "b2"], ["a3"]]


def test_a_record_waits_until_the_record_before_it_in_its_group_is_settled() -> None:
    groups = Groups(["a1", "b1", "a2", "b2"], group)
    assert groups.take(100) == ["a1", "b1"]
    assert not groups
    assert groups.take(100) == []
    groups.settled("b1")
    assert groups.take(100) == ["b2"]


def test_records_without_a_group_do_not_wait() -> None:
    groups = Groups(["1", "2", "3"], group)
    assert groups.take(2) == ["1", "2"]
    assert groups.take(2) == ["3"]


def test_the_same_record_twice_is_two_records() -> None:
    record = "1"
    groups = Groups([record, record], group)
    assert groups.take(2) == [record, record]
    groups.settled(record)
    groups.settled(record)
    assert not groups


def test_every_record_is_tried_and_each_group_is_tried_in_order() -> None:
    chance = random.Random(7)
    for _ in range(200):
        numbers = range(chance.randint(0, 12))
        records = [f"{chance.choice(('a', 'b', 'c', ''))}{number}" for number in numbers]
        groups, tried = Groups(records, group), list[str]()
        while groups:
            for record in groups.take(chance.randint(1, 4)):
                tried.append(record)
                groups.settled(record)
        assert sorted(tried) == sorted(records)
        for name in "abc":
            of_name = [record for record in records if group(record) == name]
            assert [record for record in tried if group(record) == name] == of_name
