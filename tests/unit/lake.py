"""Rules on a table of events: the answers of production's planner and law, and those of SQL."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from eventonce import Rule
from eventonce.core.ledger import Record, judge, settle
from eventonce.core.plan import Plan
from eventonce.core.planner import Planner
from eventonce.envelope import read
from eventonce.errors import EnvelopeError
from eventonce.rules import Ruleset
from eventonce.study.arrivals import arrival
from eventonce.types import Settlement
from tests.unit.made import classic


class Answer(NamedTuple):
    status: str
    key: str | None
    doubt: str | None = None
    counts: bool = False


def answers_of_the_engine(lines: Sequence[bytes], rules: Sequence[Rule]) -> list[Answer]:
    """The outcome of each line, if every run is settled before the next line arrives."""
    planner = Planner(Ruleset(rules, name="lake"), 1 << 24, lambda: 0, remembers=False)
    records: dict[bytes, Record] = {}
    found = []
    for number, raw in enumerate(lines):
        try:
            plan = planner.plan(read(raw, max_bytes=1 << 24), 2 * number + 1)
        except EnvelopeError:
            plan = None
        if not isinstance(plan, Plan):
            found.append(Answer("invalid", None))
            continue
        claim, now = plan.claim, arrival(raw).arrived or 0
        verdict, record = judge(records.get(claim.key), claim, now)
        if verdict.kind == "run":
            assert record is not None
            _, record = settle(record, Settlement(claim, verdict.token, "complete"), now)
        if record is not None:
            records[claim.key] = record
        status = "done" if verdict.kind == "run" else verdict.kind
        found.append(Answer(status, claim.key.hex()))
    return found


def differences(ours: Sequence[Answer], theirs: Sequence[Answer]) -> list[tuple[int, Any, Any]]:
    """The lines on which SQL and the engine differ: another status, one key in place of two, or
    two keys in place of one. A line that SQL marks as doubtful is not compared."""
    assert len(ours) == len(theirs)
    found = []
    sql_keys: dict[str, str] = {}
    engine_keys: dict[str, str] = {}
    for number, (engine, sql) in enumerate(zip(ours, theirs, strict=True)):
        if sql.status == "doubt":
            continue
        same = engine.status == sql.status
        if engine.key and sql.key:
            same = same and sql_keys.setdefault(engine.key, sql.key) == sql.key
            same = same and engine_keys.setdefault(sql.key, engine.key) == engine.key
        if not same:
            found.append((number, engine, sql))
    return found


DAY = 86_400_000
AT = 1_794_819_600_000

RULES = [
    Rule(name="plain", match="plain", key=["detail.a", "body.b?"], remember="1d"),
    Rule(name="needs", match="needs", requires=["detail.a"], key=["detail.a"], missing="id"),
    Rule(name="needs-not", match="needs", key=["detail.b", "id?"], missing="run"),
    Rule(name="hash", match="hash", key=["hash(detail.a)"], missing="hash", verify="detail.b"),
    Rule(name="whole", match="whole", key=["hash(body)"], ignore=["body.b", "body.o.x"]),
    Rule(name="time", match="time", key=["time(detail.t)", "detail.b?"], at="detail.t"),
    Rule(name="floor", match="floor", key=['floor(detail.t, "7s")'], missing="id", sliding=True),
    Rule(name="seconds", match="seconds", key=['time(detail.t, "s")?', "detail.b"], missing="id"),
    Rule(name="max", match="max", key=["max(detail.t, time(detail.u))?", "id?"], missing="run"),
    Rule(name="each", match="each", key=["each(detail.l)"], missing="id"),
    Rule(name="pairs", match="pairs", key=["each(detail.p, x, y?)?", "detail.b?"]),
    Rule(name="dated", match="dated", key=["detail.t", "source"], at="detail.t", missing="id"),
    Rule(name="topic", match="topic", key=["topic(1)", "topic(3)?", "org?"], missing="hash"),
    Rule(name="scope", match=["one_*", "two"], scope="both", key=["detail.b"], on_replay="force"),
    Rule(
        name="state",
        match="state",
        subject=["detail.s"],
        order="detail.n",
        state=["detail.b"],
        unchanged_within="5s",
        at="detail.t",
        remember="1d",
    ),
    Rule(
        name="state-timed",
        match="stated",
        subject=["detail.s"],
        order="time(detail.t)",
        missing="id",
        unchanged_within="5s",
    ),
]
TYPES = [
    *("plain", "needs", "hash", "whole", "time", "floor", "seconds", "max", "each", "pairs"),
    *("dated", "topic", "one_x", "two", "onexx", "state", "stated", "unknown"),
]

SCALARS = [
    *("1", "1.0", "1e0", '"1"', "10e-1", "-0", "0", "-0.0", "true", "false", "null", '""'),
    *(
        '"  "',
        '"\\u00a0\\t"',
        '"\\u0000"',
        '"\u00e9"',
        '"\\u00e9"',
        '"e\\u0301"',
        '"a\\/b"',
        '"a/b"',
    ),
    *('"\\ud83d\\ude00"', '"\U0001f600"', '"a\\"b\\\\"', '"a,b"', '"[1"', "0.1", "0.10", "1e-1"),
    *("9007199254740993", "9007199254740992", "9007199254740992.0", "12345678901234567890123"),
    *("123456789012345678901234567890123456789012345", "1e23", "1e400", "1.5", '"1.5"', '"null"'),
    *(
        '"undefined"',
        '"{}"',
        '"true"',
        '"A"',
        '"a"',
        '"a "',
        "1.0000000000000000001",
        "100000000.0",
        "1e8",
    ),
]
NESTED = [
    *("{}", "[]", "[1,[2]]", "[[1],2]", '{"x":1,"y":2}', '{"y":2,"x":1}', '{"y":2.0,"x":1e0}'),
    *(
        '{"x":{"z":[1,null]}}',
        '{"x":{"z":[1]}}',
        '["1.0,"]',
        '["1,"]',
        "[1.0]",
        "[1]",
        '{"x":null}',
    ),
]
TIMES = [
    *("1794819600000", "1794819600", "1794819600.0", "1794819600.123", "1794819600000.9", '"noon"'),
    *('"2026-11-16T09:00:00Z"', '"2026-11-16T10:00:00+01:00"', '"2026-11-16T03:30:00-0530"'),
    *('"2026-11-16 09:00:00.000Z"', '"2026-11-16t09:00:00.0009z"', '"2026-11-16T09:00"', "0", "-1"),
    *(
        '"2026-11-16"',
        '"2026-11-16T00:00:00"',
        '"2026-02-30"',
        '"2026-11-16T24:00"',
        '"1794819600"',
    ),
    *('"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999Z"', '"1969-12-31T23:59:59.999Z"', "1e12"),
    *('"2026-11-16T09:00:00+05:75"', '"0000-01-01"', '"1794819600.5"', "99999999999", "true", '""'),
]


def nasty_lines(seed: int, count: int) -> list[bytes]:
    """Lines of a capture with unequal values of similar text, and equal values of unlike text."""
    draw = random.Random(seed)
    small = draw.sample(SCALARS, 7), draw.sample(NESTED, 4), draw.sample(TIMES, 5)
    arrived = AT
    lines = []
    for number in range(count):
        arrived += draw.choice(
            [0, 0, 10, 10, 500, 2_000, 6_000, 60_000, draw.choice([0, DAY // 2, DAY])]
        )
        lines.append(_line(draw, small, arrived, number))
    return lines


def _line(draw: random.Random, pools: Sequence[Sequence[str]], arrived: int, number: int) -> bytes:
    scalars, nested, times = pools
    fields = {
        "a": draw.choice([*scalars, *nested]),
        "b": draw.choice([*scalars[:5], *nested[:2]]),
        "o": draw.choice(['{"x":1}', '{"x":2}', "{}", "3", '{"x":1,"z":1.0}']),
        "t": draw.choice(times),
        "u": draw.choice(times),
        "l": "[" + ",".join(draw.choices(scalars[:4], k=draw.randrange(3))) + "]",
        "p": draw.choice(
            ["null", "[]", '[{"x":1,"y":2},{"x":"1"}]', '[{"x":"1"},{"y":2,"x":1.0}]']
        ),
        "s": draw.choice(['"s"', "1", "1.0"]),
        "n": draw.choice(["1", "2", '"2"', "3.0", "4", '"2026-11-16T09:00:00Z"', str(AT), "5.5"]),
        "topicName": draw.choice(
            ['"v2.users.u1.presence"', '"v2"', '"v2..x"', "7", '"v2.users.u1"']
        ),
    }
    for name in list(fields):
        if draw.random() < 0.15:
            del fields[name]
    names = list(fields)
    draw.shuffle(names)
    inner = "{" + ",".join(f'"{name}":{fields[name]}' for name in names) + "}"
    detail = inner if draw.random() < 0.5 else f'{{"eventBody":{inner},"k":{number % 3},{inner[1:]}'
    detail = detail.replace(",}", "}")
    event = classic({}, id=draw.choice(["e1", "e2", f"e{number}", ""]))
    event["detail-type"] = draw.choice(TYPES)
    event["source"] = draw.choice(
        ["shop", "aws.partner/genesys.com/cloud/o1/a", "aws.partner/genesys.com/cloud/o1/b"]
    )
    if draw.random() < 0.1:
        event["replay-name"] = "again"
    text = json.dumps(event).replace('"detail": {}', f'"detail": {detail}')
    assert json.loads(text)
    return (
        f'{{"eventonce":1,"id":"m{number}","arrived":{arrived},"channel":"q","event":{text}}}'
    ).encode()
