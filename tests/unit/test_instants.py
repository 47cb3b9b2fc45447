"""Times and durations, as vendors and people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce.rules.instants import MAX_DURATION, duration, instant


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        ("2025-12-12T15:04:25Z", "", 1_765_551_865_000),
        ("2025-12-12T15:04:25.431Z", "", 1_765_551_865_431),
        ("2025-12-12T15:04:25.4Z", "", 1_765_551_865_400),
        ("2019-05-25T01:23:45.465719851Z", "", 1_558_747_425_465),
        ("2025-12-12T16:04:25+01:00", "", 1_765_551_865_000),
        ("2025-12-12T10:04:25-0500", "", 1_765_551_865_000),
        ("2025-12-12t15:04:25z", "", 1_765_551_865_000),
        ("2025-12-12 15:04", "", 1_765_551_840_000),
        ("2025-12-12", "", 1_765_497_600_000),
        ("1969-12-31T23:59:59.9995Z", "", -1),
        (1_765_551_865_126, "", 1_765_551_865_126),
        (1_765_551_865, "", 1_765_551_865_000),
        (1_700_000_000.123, "", 1_700_000_000_123),
        (-0.0015, "", -2),
        ("1765551865126", "", 1_765_551_865_126),
        ("1700000000.5", "", 1_700_000_000_500),
        (5, "s", 5000),
        (5, "ms", 5),
        (99_999_999_999, "ms", 99_999_999_999),
        ("5", "s", 5000),
        ("2025-12-12", "iso", 1_765_497_600_000),
    ],
)
def test_a_time_is_milliseconds_rounded_down(value: Any, form: str, expected: int) -> None:
    assert instant(value, form) == expected


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, ""),
        (True, ""),
        ("", ""),
        ("yesterday", ""),
        ("2025-13-12T15:04:25Z", ""),
        ("2025-12-12T24:00:00Z", ""),
        ("2025-W50-5", ""),
        ("0001-01-01T00:00:00+23:59", "s"),
        ("2025-12-12", "ms"),
        (5, "iso"),
        ("5", "iso"),
        (float("inf"), ""),
        (float("nan"), ""),
        (2**53, "ms"),
        (2**53, "s"),
        (10**400, ""),
        ([], ""),
        ("٢٠٢٥", ""),
    ],
)
def test_a_value_that_is_not_a_time_gives_none(value: Any, form: str) -> None:
    assert instant(value, form) is None


texts = st.text("0123456789-+:.TZ ", max_size=30)


@given(st.integers() | st.floats() | texts, st.sampled_from(["", "s", "ms"]))
def test_any_value_gives_none_or_a_time_of_less_than_54_bits(value: Any, form: str) -> None:
    at = instant(value, form)
    assert at is None or abs(at) < 2**53


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("5m", 300_000),
        ("24h", 86_400_000),
        ("10d", 864_000_000),
        ("1.5s", 1500),
        (" 10 s ", 10_000),
        (60, 60_000),
        (0.5, 500),
        (0, 0),
    ],
)
def test_a_duration_is_milliseconds(value: Any, expected: int) -> None:
    assert duration(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "10",
        "ten days",
        "10y",
        "-1s",
        "",
        None,
        True,
        -1,
        float("nan"),
        float("inf"),
        [],
        "99999999d",
    ],
)
def test_the_error_for_a_wrong_duration_gives_examples_of_durations(value: Any) -> None:
    with pytest.raises(ValueError, match='"500ms", "10s", "5m", "24h", "10d"'):
        duration(value)


def test_the_longest_duration_is_a_hundred_years() -> None:
    assert duration("36500d") == MAX_DURATION
