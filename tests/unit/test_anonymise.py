"""`--anonymise`: nothing personal is left, and every count stays as it was."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce import presets
from eventonce.envelope.captured import Arrived, line_of, own_line
from eventonce.rules import Ruleset
from eventonce.study.arrivals import arrival
from eventonce.study.capture.anonymise import Anonymiser
from eventonce.study.capture.cipher import Cipher
from eventonce.types import Event
from tests.helpers import Run
from tests.rows import ROWS
from tests.rows.row import Row

HEX = "9f4f04e2dfd31dbb888485288ec597aa"
UUID = "9f4f04e2-dfd3-1dbb-8884-85288ec597aa"


def changed(value: Any, field: str = "field", key: bytes = b"key") -> Any:
    event = {"detail-type": "call", "id": "1", "detail": {field: value}}
    line = Anonymiser(key)(msgspec.json.encode({"eventonce": 1, "channel": "c", "event": event}))
    return json.loads(line)["event"]["detail"][field]


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ("+49 170 1234567", r"\+\d\d \d{3} \d{7}"),
        ("tel:+15557261650", r"tel:\+[1-9]\d{10}"),
        ("anna.schmidt@example.com", r"[a-z]{4}\.[a-z]{7}@[a-z]{7}\.com"),
        ("Anna Schmidt", r"[A-Z][a-z]{3} [A-Z][a-z]{6}"),
        ("Jürgen Groß", r"[A-Z]\w{5} [A-Z]\w{3}"),
        (UUID, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        ("I live in 12 Elm Street.", r"[A-Z] [a-z]{4} [a-z]{2} \d\d [A-Z][a-z]{2} [A-Z][a-z]{5}\."),
        ("1980-05-01", r"\d{4}-\d\d-\d\d"),
        ("1980-05-01T00:00:00Z", r".*"),
    ],
)
def test_a_personal_value_becomes_another_of_the_same_shape(value: str, shape: str) -> None:
    new = changed(value)
    assert new != value
    assert re.fullmatch(shape, new)
    assert new == changed(value)
    assert new != changed(value, key=b"another")


@pytest.mark.parametrize("value", [123456789, 8059, -45678, 52.52137, 1701234567, 4917612345678])
def test_a_number_that_may_identify_a_person_is_replaced(value: float) -> None:
    new = changed(value)
    assert new != value
    assert len(str(new)) == len(str(value))


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (12345678, "accountNumber"),
        (12345678, "ACCOUNT_ID"),
        (4711, "items"),
        (1701234567, "agents"),
        ("1701234567", "contacts"),
        (1701234567, "friend"),
        ("Anna Schmidt", "type"),
    ],
)
def test_a_value_is_replaced_if_its_field_name_only_resembles_a_count_or_a_time(
    value: Any, field: str
) -> None:
    assert changed(value, field) != value


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("2026-11-16T01:14:04.051Z", "timestamp"),
        (1794791643770, "eventTime"),
        (1794791643, "changedAt"),
        (1794791643, "eventtime"),
        (1794791643, "start_date"),
        (3, "version"),
        (40_000, "sequencenumber"),
        (40_000, "callCount"),
        (51859, "connectedDurationMs"),
        ("INBOUND", "direction"),
        (True, "held"),
        (None, "nothing"),
        (0.93, "confidence"),
    ],
)
def test_times_counts_and_enumerations_stay(value: Any, field: str) -> None:
    assert changed(value, field) == value


def test_a_sentence_in_a_field_of_known_values_is_replaced() -> None:
    assert "Anna" not in changed("Anna Schmidt is away", "status")


def test_an_id_is_replaced_by_the_same_id_everywhere() -> None:
    anonymise = Anonymiser(b"key")
    detail = {
        "topicName": f"v2.users.{UUID}.presence",
        "user": {"id": UUID, "upper": UUID.upper()},
        "agents": ["90440", 90440],
        "phones": ["tel:+15557261650", "+15557261650", 15557261650],
        "text": json.dumps({"id": UUID}),
        "byUser": {UUID: 1},
        "hex": HEX,
        "status": f"v2.calls.{HEX}.end",
    }
    event = {"detail-type": "t", "id": "1", "detail": detail}
    new = json.loads(anonymise(msgspec.json.encode(event)))["detail"]
    other = new["user"]["id"]
    assert other != UUID
    assert new["topicName"] == f"v2.users.{other}.presence"
    assert new["user"]["upper"] == other.upper()
    assert json.loads(new["text"]) == {"id": other}
    assert list(new["byUser"]) == [other]
    assert new["hex"] != HEX
    assert new["status"] == f"v2.calls.{new['hex']}.end"
    assert new["agents"][0] == str(new["agents"][1])
    digits = {re.sub(r"\D", "", str(phone)) for phone in new["phones"]}
    assert len(digits) == 1


def test_no_two_short_values_become_the_same_value() -> None:
    cipher = Cipher(b"key")
    pairs = ["".join(pair) for pair in product("abcdefghijklmnopqrstuvwxyz", repeat=2)]
    assert len({cipher.text(pair) for pair in pairs}) == len(pairs)
    numbers = [str(number) for number in range(1_000, 10_000)]
    assert {cipher.number(number) for number in numbers} == set(numbers)


def test_the_words_of_a_sentence_are_not_replaced_one_by_one() -> None:
    first, second = changed("the customer called the agent"), changed("the agent called back")
    words = first.split()
    assert words[0] != words[3]
    assert words[4] != second.split()[1]


@given(st.sets(st.text(max_size=4), min_size=2))
def test_values_that_differ_stay_different(texts: set[str]) -> None:
    cipher = Cipher(b"key")
    assert len({cipher.text(one) for one in texts}) == len(texts)


@given(st.sets(st.integers(min_value=-(10**20), max_value=10**20), min_size=2))
def test_numbers_that_differ_stay_different(numbers: set[int]) -> None:
    anonymise = Anonymiser(b"key")
    assert len({anonymise._number(one, "n") for one in numbers}) == len(numbers)


def form(value: Any) -> Any:
    """The nesting and the types of a value."""
    return [form(one) for one in value] if isinstance(value, list) else type(value)


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.recursive(st.text() | FINITE | st.booleans(), st.lists))
def test_any_value_keeps_its_nesting_and_its_types(value: Any) -> None:
    assert form(changed(value)) == form(value)


def test_lines_that_are_no_events_are_changed_too() -> None:
    anonymise = Anonymiser(b"key")
    for raw in (b"Anna Schmidt", b'{"eventonce":1,"channel":"c","event":"Anna Schmidt"}', b"\xff"):
        assert b"Anna" not in anonymise(raw)
    assert anonymise.replaced("no event") == ["all of it"]
    binary = json.loads(anonymise(b'{"eventonce":1,"channel":"c","event_base64":"/wBBbm5h"}'))
    assert binary.keys() == {"eventonce", "channel", "event_base64"}
    assert binary["event_base64"] != "/wBBbm5h"


@pytest.mark.parametrize(
    "value",
    [
        b'"%b"' % (b"9" * 5_000),
        b"9" * 400,
        b"-1e999",
        b'{"a":' * 700 + b'"Anna"' + b"}" * 700,
        b'"%b%b"' % (b"[" * 700, b"]" * 700),
        b'"%b"' % (b"[" * 100_000),
    ],
    ids=["digits", "number", "infinite", "deep", "deep text", "deeper text"],
)
def test_no_value_ends_a_capture(value: bytes) -> None:
    line = b'{"eventonce":1,"channel":"c","event":{"id":"1","detail-type":"t","detail":%b}}' % value
    new = Anonymiser(b"key")(line)
    assert b"Anna" not in new
    assert own_line(new) is not None


@pytest.mark.parametrize("name", ["Anna Schmidt", "Anna <anna@example.com>", "Jürgen", "+49 170 1"])
def test_a_map_by_names_of_people_has_other_names_of_the_same_shape(name: str) -> None:
    anonymise = Anonymiser(b"key")
    event = {"detail-type": "call", "id": "7x", "detail": {"calls": {name: 1, "callCount": 2}}}
    new = json.loads(anonymise(msgspec.json.encode(event)))["detail"]["calls"]
    other, count = new
    assert (len(other), count) == (len(name), "callCount")
    assert other != name
    assert name not in str(anonymise.fields)


@pytest.mark.parametrize("name", ["王伟", "김민준"])
def test_the_letters_of_a_large_script_are_replaced_by_letters_of_many_code_blocks(
    name: str,
) -> None:
    first = {ord(changed(name, key=bytes([one]))[0]) // 128 for one in range(20)}
    assert len(first) > 10


@pytest.mark.parametrize("seed", [8102])
def test_diagnose_and_backtest_count_the_same_on_the_anonymised_capture(
    run: Run, tmp_path: Path, seed: int
) -> None:
    plain, truth, hidden = (tmp_path / name for name in ("c.jsonl", "t.jsonl", "a.jsonl"))
    sources = [word for name in ("genesys", "cxone", "unknown") for word in ("--source", name)]
    lines = ("--events", "800", "--seed", str(seed), "-o", plain, "--truth", truth)
    run("simulate", *sources, *lines)
    anonymise = Anonymiser(b"key")
    raw = plain.read_bytes().splitlines()
    hidden.write_bytes(b"".join(anonymise(line) + b"\n" for line in raw))
    text = hidden.read_text()
    for personal in set(re.findall(r"\+1555\d{7}|[0-9a-f-]{36}", plain.read_text())):
        assert personal not in text

    def diagnosed(capture: Path) -> Any:
        (found,) = run("diagnose", capture, "--json").documents
        for kind in found["kinds"]:
            # The organisation's id is replaced; the rest of the source stays.
            kind["source"] = re.sub(r"[0-9a-f-]{36}", "", kind["source"])
        found["findings"].sort(key=lambda finding: (finding["code"], finding["type"]))
        return found

    def tried(capture: Path) -> Any:
        guards = ("--presets", "genesys:latest", "--recipes", "--truth", truth)
        return run("backtest", capture, *guards, "--json").documents

    assert diagnosed(hidden) == diagnosed(plain)
    assert tried(hidden) == tried(plain)


def test_unchanged_fields_and_replaced_fields_are_listed_by_event_type() -> None:
    anonymise = Anonymiser(b"key")
    detail = {"direction": "INBOUND", "names": [{"first": "Anna"}], "status": "Anna is away"}
    anonymise(msgspec.json.encode({"detail-type": "call", "id": "7x", "detail": detail}))
    assert anonymise.left("call") == ["detail-type", "detail.direction"]
    assert anonymise.replaced("call") == ["id", "detail.names[].first", "detail.status"]


def test_a_field_in_which_only_an_id_was_replaced_is_listed_as_left_and_as_replaced() -> None:
    anonymise = Anonymiser(b"key")
    event = {"id": "7x", "detail-type": "t", "detail": {"topicName": f"v2.{UUID}.anna-schmidt"}}
    told = {"eventonce": 1, "channel": "arn:aws:sqs:eu:123456789012:anna", "event": event}
    new = anonymise(msgspec.json.encode(told))
    assert b"123456789012" not in new
    assert anonymise.left("t") == ["detail-type", "detail.topicName", "channel of the line"]
    assert anonymise.replaced("t") == ["id", "detail.topicName"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_same_rule_matches_the_anonymised_event_with_the_same_order_and_time(row: Row) -> None:
    line = line_of(Arrived(row.read(), "sqs:calls", "m1", 1, 1))
    rules = Ruleset(presets.resolve(row.preset), name="study")
    found = []
    for raw in (line, Anonymiser(b"key")(line)):
        event = arrival(raw).event
        assert isinstance(event, Event)
        rule, claim = rules.plan(event, 1)
        found.append((event.type, rule.name, claim.order, claim.at))
    assert found[0] == found[1]
