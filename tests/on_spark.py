"""The queries of `eventonce sql` on a local Spark: the same answers as the engine, row by row, and
the same counts on a cluster of two processes as on one machine. `make spark` runs it: Spark is too
large a download, and too slow to start, for every `make test`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from eventonce import Rule, presets
from eventonce.cli import cli
from eventonce.study.sql import query
from eventonce.study.sql.statement import Relation
from tests.unit.lake import RULES, Answer, answers_of_the_engine, differences, nasty_lines

SEED = 41
EVENTS = "2000"
SOURCES = ("genesys", "cxone", "unknown")
PRESETS = ("genesys", "cxone")


def spark(master: str) -> Any:
    """A session; interpreted, as compiling the queries takes Java longer than these rows."""
    from pyspark.sql import SparkSession

    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    builder = SparkSession.builder.master(master).appName("eventonce")
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def show(session: Any, lines: Sequence[bytes]) -> None:
    """Make a view of the lines, in several partitions."""
    rows = [(number, line.decode()) for number, line in enumerate(lines)]
    frame = session.createDataFrame(rows, "line long, event string")
    frame.repartition(4).createOrReplaceTempView("events")


def query_of(rules: Sequence[Rule]) -> str:
    return query(rules, "spark", Relation("events", place="line", keep=("line",)))


def compare(session: Any, name: str, lines: Sequence[bytes], rules: Sequence[Rule]) -> None:
    """Hold Spark's answers to the engine's."""
    began = time.perf_counter()
    show(session, lines)
    found = session.sql(query_of(rules)).collect()
    rows = sorted(found, key=lambda row: row["line"])
    theirs = [
        Answer(
            row["eventonce_status"],
            row["eventonce_key"],
            row["eventonce_doubt"],
            row["eventonce_counts"],
        )
        for row in rows
    ]
    wrong = differences(answers_of_the_engine(lines, rules), theirs)
    assert not wrong, [(lines[number], *rest) for number, *rest in wrong[:3]]
    statuses = Counter(one.status for one in theirs)
    assert statuses["duplicate"], name
    assert statuses["doubt"] < len(lines) / 4, name
    print(f"{name}: {dict(statuses)}, {time.perf_counter() - began:.0f} s", flush=True)


def captured(*sources: str) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        file, truth = Path(folder, "capture.jsonl"), Path(folder, "truth.jsonl")
        named = [word for source in sources for word in ("--source", source)]
        options = ["--events", EVENTS, "--days", "20", "--seed", str(SEED)]
        words = ["simulate", *named, *options, "-o", str(file), "--truth", str(truth)]
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, result.output
        return file.read_bytes().splitlines()


def copies_by_type(run: Callable[[str], list[Any]], text: str) -> dict[str, int]:
    """The counts of a study: the copies of each type."""
    rows = run(
        f"SELECT eventonce_rule, count(*) FROM ({text}) AS answers "
        "WHERE eventonce_status = 'duplicate' GROUP BY eventonce_rule"
    )
    return dict(map(tuple, rows))


def on_one_machine(lines: Sequence[bytes], rules: Sequence[Rule]) -> dict[str, int]:
    import duckdb

    with duckdb.connect() as database:
        database.execute("CREATE TABLE events (line BIGINT, event VARCHAR)")
        rows = [(number, line.decode()) for number, line in enumerate(lines)]
        database.executemany("INSERT INTO events VALUES (?, ?)", rows)
        text = query(rules, "duckdb", Relation("events", place="line", keep=("line",)))
        return copies_by_type(lambda asked: database.execute(asked).fetchall(), text)


def main() -> None:
    began = time.perf_counter()
    session = spark("local[2]")
    print(f"Spark {session.version} started, {time.perf_counter() - began:.0f} s", flush=True)
    compare(session, "nasty values", nasty_lines(10, 1500), RULES)
    compare(session, "all sources", captured(*SOURCES), presets.resolve(PRESETS))
    session.stop()
    lines, rules = captured("cxone"), presets.resolve("cxone")
    # Two processes with a core and a gibibyte each.
    session = spark("local-cluster[2,1,1024]")
    show(session, lines)
    counts = copies_by_type(lambda asked: session.sql(asked).collect(), query_of(rules))
    session.stop()
    assert counts == on_one_machine(lines, rules), counts
    print(f"two processes count as one machine: {counts}", flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
