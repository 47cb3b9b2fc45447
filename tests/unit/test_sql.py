"""`eventonce sql` on DuckDB: the key and the answer of every row are those of the engine."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest
import sqlglot

from eventonce import Rule, presets
from eventonce.errors import ConfigError
from eventonce.study.sql import lines_of, query
from eventonce.study.sql.statement import Relation
from tests.helpers import Run
from tests.unit.lake import (
    AT,
    NESTED,
    RULES,
    SCALARS,
    TIMES,
    Answer,
    answers_of_the_engine,
    differences,
    nasty_lines,
)
from tests.unit.made import classic

COLUMNS = "eventonce_status, eventonce_key, eventonce_doubt, eventonce_counts"


def answers_of_duckdb(file: Path, rules: Sequence[Rule]) -> list[Answer]:
    text = query(rules, "duckdb", lines_of(str(file)))
    with duckdb.connect() as database:
        rows = database.execute(f"SELECT {COLUMNS} FROM ({text}) ORDER BY line").fetchall()
    return [Answer(*row) for row in rows]


def compared(file: Path, lines: Sequence[bytes], rules: Sequence[Rule]) -> list[Answer]:
    """The answers of SQL, which are those of the engine."""
    file.write_bytes(b"\n".join(lines) + b"\n")
    ours, theirs = answers_of_the_engine(lines, rules), answers_of_duckdb(file, rules)
    assert not [(lines[number], *rest) for number, *rest in differences(ours, theirs)]
    return theirs


def test_unusual_values_have_the_same_answers_in_sql_and_in_the_engine(tmp_path: Path) -> None:
    answers = compared(tmp_path / "nasty.jsonl", nasty_lines(10, 1500), RULES)
    statuses = Counter(one.status for one in answers)
    assert {"done", "duplicate", "stale", "invalid", "conflict"} <= statuses.keys()
    assert statuses["doubt"] < len(answers) / 4
    assert all(one.counts == (one.status == "doubt") for one in answers if one.doubt)


def test_every_unusual_value_is_compared_with_every_other_value(tmp_path: Path) -> None:
    """As a part, as content and as a time; an absent value is neither null nor an empty text."""
    rules = [
        Rule(name="part", match="part", key=["detail.k", "detail.a?"]),
        Rule(name="content", match="content", key=["detail.k", "hash(detail.a)?"]),
        Rule(name="time", match="time", key=["detail.k", "time(detail.a)?"]),
    ]
    values = ["", *(f', "a": {value}' for value in (*SCALARS, *NESTED, *TIMES))]
    lines = [
        json.dumps({**classic({"k": 1}, id=str(number)), "detail-type": rule.name})
        .replace('"k": 1', f'"k": 1{value}')
        .encode()
        for number, value in enumerate(values)
        for rule in rules
    ]
    answers = compared(tmp_path / "values.jsonl", lines, rules)
    known = [one for one in answers if one.status in ("done", "duplicate")]
    assert len(known) > len(lines) / 2


def test_windows_and_chains_of_versions_have_the_same_answers_in_sql_and_in_the_engine(
    tmp_path: Path,
) -> None:
    """A fact runs again after `remember`, despite copies in between; a state that arrives again
    within `unchanged_within` is compared with the last version that ran."""
    rules = [
        Rule(name="fact", match="fact", key=["detail.k"], remember="10s"),
        Rule(name="slides", match="slides", key=["detail.k"], remember="10s", sliding=True),
        Rule(
            name="state",
            match="state",
            subject=["detail.k"],
            order="detail.n",
            at="detail.t",
            state=["detail.v?"],
            unchanged_within="500ms",
        ),
    ]
    draw = random.Random(8)
    arrived, lines = AT, []
    for number in range(900):
        arrived += draw.choice([0, 1_000, 3_000, 9_999])
        detail = {
            "k": draw.randrange(2),
            "n": number + draw.choice([0, 0, 0, -4]),
            "t": AT + 1000 * number // 5 + draw.choice([0, 0, -300, 300]),
            "v": draw.choice([1, 1, 1, 2]),
        }
        event = classic(detail, id=f"e{number}")
        event["detail-type"] = draw.choice(["fact", "slides", "state"])
        line = {"eventonce": 1, "id": f"m{number}", "arrived": arrived, "event": event}
        lines.append(json.dumps(line).encode())
    answers = compared(tmp_path / "chains.jsonl", lines, rules)
    statuses = Counter(one.status for one in answers)
    assert statuses["unchanged"] > 20
    assert statuses["duplicate"] > 100
    assert not statuses["doubt"]


@pytest.mark.parametrize(
    ("source", "preset"),
    [("genesys", "genesys"), ("cxone", "cxone"), ("unknown", "relayed")],
)
def test_a_simulated_capture_has_the_same_copies_for_sql_and_for_the_engine(
    run: Run, tmp_path: Path, source: str, preset: str
) -> None:
    file, truth = tmp_path / "capture.jsonl", tmp_path / "truth.jsonl"
    options = ("--events", "1500", "--days", "20", "--seed", "41")
    run("simulate", "--source", source, *options, "-o", file, "--truth", truth)
    lines = file.read_bytes().splitlines()
    answers = compared(file, lines, presets.resolve(preset))
    statuses = Counter(one.status for one in answers)
    assert statuses["duplicate"] > 100
    assert not statuses["doubt"]


def test_the_newest_version_of_a_state_and_the_first_arrival_of_a_fact_count(
    tmp_path: Path,
) -> None:
    rules = [
        Rule(name="fact", match="fact", key=["detail.k"]),
        Rule(name="state", match="state", subject=["detail.k"], order="detail.n"),
    ]
    told = [("fact", 1, 0), ("state", 1, 5), ("fact", 1, 0), ("state", 1, 7), ("state", 1, 6)]
    lines = []
    for number, (type_, k, n) in enumerate(told):
        event = {**classic({"k": k, "n": n}, id=f"e{number}"), "detail-type": type_}
        lines.append(json.dumps(event).encode())
    answers = compared(tmp_path / "some.jsonl", lines, rules)
    assert [one.counts for one in answers] == [True, False, False, True, False]


def test_a_line_that_sql_cannot_read_for_certain_is_in_doubt_and_counts(tmp_path: Path) -> None:
    good = json.dumps(classic({"k": 1}))
    odd = [
        "no json",
        '{"a": 1}',
        good.replace('"k": 1', '"k": 1, "k": 2'),
        good.replace('"k": 1', '"k": NaN'),
        json.dumps({"eventonce": 1, "headers": {"x": "y"}, "event": classic({"k": 1})}),
        json.dumps({"Body": good, "MessageId": "m", "ReceiptHandle": "r"}),
    ]
    file = tmp_path / "odd.jsonl"
    file.write_text("\n".join([*odd, good]) + "\n")
    *others, last = answers_of_duckdb(file, [Rule(name="k", key=["detail.k"])])
    assert [(one.status, one.counts, bool(one.doubt)) for one in others] == [
        ("doubt", True, True)
    ] * len(odd)
    assert last.status == "done"


@pytest.mark.parametrize("dialect", ["duckdb", "spark", "athena", "snowflake"])
def test_a_query_is_one_statement_of_its_dialect(dialect: str) -> None:
    text = query(RULES, dialect, Relation("lake.events", "body"), view="seen")
    (statement,) = sqlglot.parse(text, read=dialect)
    assert statement is not None
    assert statement.key == "create"
    assert "EO_" not in text


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule(name="r", key=["id"], also=[["source"]]), "`also`"),
        (Rule(name="r", key=["id"], on_replay="report"), "only reports replays"),
        (Rule(name="r", key=["id"], sliding=True, verify=True), "`sliding` and `verify`"),
        (Rule(name="r", key=['detail."a\'b"']), "cannot be used in a path"),
        (Rule(name="r", key=["id"], match="a\\b"), "the glob"),
    ],
)
def test_a_rule_that_sql_cannot_express_is_refused(rule: Rule, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        query([rule], "spark", Relation("events"))


def test_the_command_prints_a_query_for_a_file_that_duckdb_runs(run: Run) -> None:
    Path("rules.toml").write_text('[[rule]]\nname = "k"\nkey = ["detail.k"]\n')
    events = [classic({"k": 1}, id="1"), classic({"k": 1}, id="2"), classic({"k": 2}, id="3")]
    Path("events.jsonl").write_text("\n".join(map(json.dumps, events)))
    printed = run("sql", "rules.toml", "--file", "events.jsonl")
    assert printed.code == 0
    with duckdb.connect() as database:
        text = f"SELECT eventonce_copy FROM ({printed.out}) ORDER BY line"
        copies = database.execute(text).fetchall()
    assert copies == [(1,), (2,), (1,)]
    assert run("sql").code == 2
    assert run("sql", "rules.toml", "--dialect", "spark", "--file", "events.jsonl").code == 2


def test_a_table_has_its_own_columns_beside_the_answer(run: Run) -> None:
    printed = run(
        "sql", "-p", "eventbridge", "--table", "lake", "--column", "body", *("--keep", "n")
    )
    with duckdb.connect() as database:
        database.execute("CREATE TABLE lake (n INTEGER, body VARCHAR)")
        for number in range(3):
            body = json.dumps(classic({"k": 1}, id="same"))
            database.execute("INSERT INTO lake VALUES (?, ?)", [number, body])
        rows = database.execute(f"SELECT n, eventonce_status FROM ({printed.out})").fetchall()
    assert sorted(status for _, status in rows) == ["done", "duplicate", "duplicate"]
    assert sorted(number for number, _ in rows) == [0, 1, 2]


def test_a_column_of_the_table_may_have_the_name_of_a_column_within_the_query(run: Run) -> None:
    """Such a column would stand for the other: its value for the key of the event, for example."""
    names = ["key", "document", "place", "told", "version", "status", "unread", "width", "doubt"]
    keep = [word for name in names for word in ("--keep", name)]
    printed = run("sql", "-p", "eventbridge", "--table", "lake", "--column", "body", *keep)
    with duckdb.connect() as database:
        columns = ", ".join(f"{name} VARCHAR" for name in names)
        database.execute(f"CREATE TABLE lake (body VARCHAR, {columns})")
        for number in range(3):
            body = json.dumps(classic({"k": 1}, id="same"))
            values = [f"{name} {number}" for name in names]
            database.execute(f"INSERT INTO lake VALUES (?{', ?' * len(names)})", [body, *values])
        found = database.execute(
            f"SELECT {', '.join(names)}, eventonce_status FROM ({printed.out}) ORDER BY key"
        ).fetchall()
        (keys,) = database.execute(
            f"SELECT count(DISTINCT eventonce_key) FROM ({printed.out})"
        ).fetchall()
    assert [row[:-1] for row in found] == [
        tuple(f"{name} {number}" for name in names) for number in range(3)
    ]
    assert sorted(row[-1] for row in found) == ["done", "duplicate", "duplicate"]
    assert keys == (1,)


@pytest.mark.parametrize("words", [("--keep", "a.b"), ("--column", "two words"), ("--table", "x'")])
def test_a_name_that_is_no_sql_is_refused_with_the_options_to_look_at(
    words: tuple[str, str], run: Run
) -> None:
    told = run("sql", "-p", "genesys", *words)
    assert told.code == 2
    assert "--keep the name of a column" in told.err
