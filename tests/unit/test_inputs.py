"""Captures in the forms that other tools write: each gives its events, with the arrival that the
file has."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

from eventonce.errors import ConfigError, EnvelopeError
from eventonce.sources.files import Capture
from eventonce.study.arrivals import Arrival, arrival
from eventonce.study.index import lines_at
from eventonce.types import Event
from tests.helpers import Run, write_lines

EVENT = {"id": "e1", "detail-type": "call", "source": "crm", "detail": {"call": "c1", "n": 1}}
TEXT = json.dumps(EVENT)
DETAIL = json.dumps(EVENT["detail"])
AT = 1_794_819_600_123
STAMP = "2026-11-16T09:00:00.123Z"


def arrivals(*paths: Path) -> list[Arrival]:
    return [arrival(raw) for raw in Capture(paths)]


def told(found: Arrival) -> tuple[Any, ...]:
    assert isinstance(found.event, Event), found.event
    return (found.event.id, found.event.detail, *found[1:])


def test_a_log_export_gives_each_message_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "000000.gz"
    pretty = json.dumps(EVENT, indent=2)
    lines = f"{STAMP} {TEXT}\n{STAMP} START RequestId: 7\n{STAMP} {pretty}\n{STAMP} {TEXT}\n"
    path.write_bytes(gzip.compress(lines.encode()))
    first, start, over_lines, last = arrivals(path)
    for one in (first, over_lines, last):
        assert told(one) == ("e1", EVENT["detail"], AT, "", "", 0)
    assert not isinstance(start.event, Event)


def test_a_message_of_a_log_that_is_no_json_keeps_its_time(tmp_path: Path) -> None:
    path = tmp_path / "000000"
    path.write_bytes(f"{STAMP} {{cut off\n{STAMP} \n".encode() + STAMP.encode() + b" \xff\n")
    for one in arrivals(path):
        assert isinstance(one.event, EnvelopeError)
        assert one.arrived == AT


def test_bytes_that_are_no_text_stay_whole_in_a_line_that_another_tool_has_rewritten(
    tmp_path: Path,
) -> None:
    line = json.dumps({"arrived": AT, "channel": "c", "event_base64": "/w==", "eventonce": 1})
    path = tmp_path / "000000"
    path.write_text(f"{STAMP} {line}\n")
    (found,) = Capture([path])
    assert json.loads(found) == json.loads(line)


def test_a_message_of_a_log_may_continue_in_the_next_chunk(tmp_path: Path) -> None:
    path = tmp_path / "000000"
    event = json.dumps({"id": "e1", "detail": {f"field{n}": n for n in range(40)}}, indent=1)
    path.write_text("".join(f"{STAMP} {event}\n" for _ in range(5_000)))
    found = arrivals(path)
    assert len(found) == 5_000
    assert all(isinstance(one.event, Event) for one in found)


def test_the_permission_check_file_of_an_export_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "aws-logs-write-test").write_text("Permission Check Successful")
    stream = tmp_path / "task" / "stream"
    stream.mkdir(parents=True)
    (stream / "000000.gz").write_bytes(gzip.compress(f"{STAMP} {TEXT}\n".encode()))
    assert len(arrivals(tmp_path)) == 1


def log_line(number: int) -> dict[str, Any]:
    beside = {"logStreamName": "s", "timestamp": AT, "ingestionTime": AT + 5}
    return {**beside, "message": TEXT, "eventId": f"log{number}"}


@pytest.mark.parametrize("many", [3, 5_000])
def test_the_output_of_filter_log_events_is_a_capture(tmp_path: Path, many: int) -> None:
    """A document beyond the limit of one event is split while it is read."""
    path = tmp_path / "logs.json"
    events = [log_line(number) for number in range(many)]
    path.write_text(json.dumps({"events": events, "searchedLogStreams": []}))
    found = [arrival(raw) for raw in Capture([path], longest=100_000)]
    assert len(found) == many
    assert told(found[2]) == ("e1", EVENT["detail"], AT, "", "log2", 0)


def test_a_firehose_delivery_of_a_log_gives_the_time_of_each_message(tmp_path: Path) -> None:
    path = tmp_path / "delivery-1-2026-11-16"
    line = {"id": "log1", "timestamp": AT, "message": TEXT}
    data = {"messageType": "DATA_MESSAGE", "logGroup": "g", "logEvents": [line]}
    path.write_bytes(gzip.compress(json.dumps(data).encode()) * 2)
    assert [told(one) for one in arrivals(path)] == [("e1", EVENT["detail"], AT, "", "log1", 0)] * 2


def test_a_log_line_without_an_arrival_arrived_when_it_was_logged(tmp_path: Path) -> None:
    line = json.dumps({"eventonce": 1, "event": EVENT})
    logged = {"message": line, "timestamp": AT, "ingestionTime": AT, "eventId": "7"}
    (found,) = arrivals(write_lines(tmp_path / "c.jsonl", logged))
    assert told(found) == ("e1", EVENT["detail"], AT, "", "7", 0)


@pytest.mark.parametrize("arrived", [-(10**14), 10**14, 10**18, 10**30])
def test_an_arrival_outside_the_calendar_is_unknown(run: Run, tmp_path: Path, arrived: int) -> None:
    line = {"eventonce": 1, "id": "m", "arrived": arrived, "receives": 10**30, "event": EVENT}
    (found,) = arrivals(write_lines(tmp_path / "c.jsonl", line))
    assert (found.arrived, found.receives) == (None, 65_535)
    message = {"MessageId": "m", "ReceiptHandle": "r", "Body": TEXT}
    (found,) = arrivals(
        write_lines(tmp_path / "m.jsonl", {**message, "Attributes": {"SentTimestamp": "9" * 5_000}})
    )
    assert found.arrived is None
    capture = write_lines(tmp_path / "both.jsonl", line, {**line, "arrived": AT}, EVENT)
    page, copies = tmp_path / "p.html", tmp_path / "copies.jsonl"
    result = run("diagnose", capture, "--html", page)
    assert (result.code, "Not counted here: 2 copies" in result.out) == (0, True)
    assert "Not counted here" in page.read_text()
    assert run("backtest", capture, "--recipes").code == 0
    assert run("filter", capture, "--copies", copies).code == 0


def test_an_object_with_a_message_that_is_no_log_line_stays_an_event(tmp_path: Path) -> None:
    odd = {**log_line(1), "type": "alarm"}
    (found,) = arrivals(write_lines(tmp_path / "c.jsonl", odd))
    assert isinstance(found.event, Event)
    assert found.event.type == "alarm"


def test_messages_of_a_queue_give_their_sent_time_and_their_receive_count(
    tmp_path: Path,
) -> None:
    attributes = {"SentTimestamp": str(AT), "ApproximateReceiveCount": "2"}
    message = {"MessageId": "m1", "ReceiptHandle": "r", "Body": TEXT, "Attributes": attributes}
    record = {
        "messageId": "m1",
        "receiptHandle": "r",
        "body": TEXT,
        "attributes": attributes,
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-central-1:1:q",
    }
    path = write_lines(tmp_path / "c.jsonl", {"Messages": [message]}, {"Records": [record]})
    received, invoked = arrivals(path)
    assert told(received) == ("e1", EVENT["detail"], AT, "", "m1", 2)
    assert told(invoked) == ("e1", EVENT["detail"], AT, record["eventSourceARN"], "m1", 2)


def parquet(path: Path, query: str, *values: Any) -> Path:
    with duckdb.connect() as database:
        database.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)", [*values])
    return path


STRUCT = (
    "{'id': 'e1', 'detail-type': 'call', 'source': 'crm', 'replay-name': NULL::VARCHAR, "
    "'detail': {'call': 'c1', 'n': 1, 'other': NULL::INTEGER}}"
)


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT '{TEXT}' AS event",
        f"SELECT '{TEXT}'::BLOB AS message",
        f"SELECT '{TEXT}'::JSON AS body",
        f"SELECT {STRUCT} AS event",
        f"SELECT unnest({STRUCT})",
        f"SELECT 'e1' AS id, 'call' AS detail_type, 'crm' AS source, '{DETAIL}' AS detail",
    ],
    ids=["text", "bytes", "json", "struct", "columns", "detail as text"],
)
def test_a_row_of_parquet_is_an_event_or_contains_an_event(tmp_path: Path, query: str) -> None:
    (found,) = arrivals(parquet(tmp_path / "c.parquet", query))
    assert told(found) == ("e1", EVENT["detail"], None, "", "", 0)
    assert isinstance(found.event, Event)
    assert (found.event.type, found.event.replay) == ("call", "")


@pytest.mark.parametrize("arrived", [str(AT), f"make_timestamp_ms({AT})"])
def test_columns_beside_the_event_describe_its_delivery(tmp_path: Path, arrived: str) -> None:
    query = (
        f"SELECT '{TEXT}' AS event, {arrived} AS arrived, 'sqs:calls' AS channel, "
        "2 AS receives, 'm1' AS id FROM range(2500)"
    )
    found = arrivals(parquet(tmp_path / "c.parquet", query))
    assert len(found) == 2_500
    assert told(found[-1]) == ("e1", EVENT["detail"], AT, "sqs:calls", "m1", 2)


def test_a_text_that_is_no_json_keeps_the_data_of_its_delivery(tmp_path: Path) -> None:
    query = f"""SELECT '{{"id": ' AS event, {AT} AS arrived, 'sqs:calls' AS channel"""
    (found,) = arrivals(parquet(tmp_path / "c.parquet", query))
    assert isinstance(found.event, EnvelopeError)
    assert (found.arrived, found.channel) == (AT, "sqs:calls")


def test_ctrl_c_in_a_query_of_a_parquet_file_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB makes a RuntimeError of the KeyboardInterrupt."""
    path = parquet(tmp_path / "c.parquet", "SELECT '{}' AS event")
    endless = "(SELECT count(*) FROM range(1_000_000_000_000))::VARCHAR, NULL, NULL, NULL, NULL"
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))

    def chosen(_: object) -> tuple[str, bool]:
        # Not earlier: a signal before the query would end the tests.
        timer.start()
        return endless, False

    monkeypatch.setattr("eventonce.sources.parquet._chosen", chosen)
    with pytest.raises(KeyboardInterrupt):
        list(Capture([path]))
    timer.join()


@pytest.mark.parametrize("name", ["c*.parquet", "c[1].parquet", "c?.parquet"])
def test_the_name_of_a_parquet_file_is_not_a_glob_pattern(tmp_path: Path, name: str) -> None:
    parquet(tmp_path / "c1.parquet", "SELECT '{}' AS event FROM range(2)")
    (found,) = arrivals(parquet(tmp_path / name, f"SELECT '{TEXT}' AS event"))
    assert told(found)[0] == "e1"


def test_a_null_of_the_source_is_kept(tmp_path: Path) -> None:
    path = parquet(tmp_path / "c.parquet", """SELECT '{"id":"e1","detail":{"a":null}}' AS event""")
    (found,) = arrivals(path)
    assert told(found)[1] == {"a": None}


def test_the_error_for_parquet_without_events_names_its_columns(tmp_path: Path, run: Run) -> None:
    path = parquet(tmp_path / "c.parquet", "SELECT 1 AS first, 2 AS second")
    result = run("diagnose", path)
    assert result.code == 2
    assert f"{path} cannot be read to its end: no column holds events" in result.err
    assert "first, second" in result.err


def broken_zip(path: Path) -> None:
    path.write_bytes(gzip.compress((TEXT + "\n").encode() * 3)[:-4])


def broken_parquet(path: Path) -> None:
    parquet(path, f"SELECT '{TEXT}' AS event")
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("command", ["diagnose", "backtest", "reconcile"])
@pytest.mark.parametrize("broken", [broken_zip, broken_parquet])
def test_a_broken_file_is_named_the_other_files_are_studied_and_the_exit_code_is_2(
    run: Run, tmp_path: Path, command: str, broken: Callable[[Path], None]
) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    broken(folder / "1.parquet")
    write_lines(folder / "2.jsonl", *({**EVENT, "id": f"other{n}"} for n in range(5)))
    more = [write_lines(tmp_path / "seen.jsonl", EVENT)] if command == "reconcile" else []
    result = run(command, folder, *more, "--json")
    assert result.code == 2
    (complaint,) = [line for line in result.err.splitlines() if "error" in line]
    assert f"{folder / '1.parquet'} cannot be read to its end" in complaint
    assert result.documents


def test_a_subfolder_that_cannot_be_read_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path / "1.jsonl", EVENT)
    (tmp_path / "secret").mkdir()
    listed = os.scandir

    def refused(path: Any) -> Any:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refused)
    result = run("diagnose", tmp_path)
    assert result.code == 2
    assert "Permission denied" in result.err
    assert "secret" in result.err


def test_the_commands_agree_on_a_capture_in_every_form(run: Run, tmp_path: Path) -> None:
    plain = tmp_path / "c.jsonl"
    assert run("simulate", "--events", "300", "-o", plain).code == 0
    lines = plain.read_text().splitlines()
    query = "SELECT unnest(?::VARCHAR[]) AS event"
    wholes = parquet(tmp_path / "whole.parquet", query, lines)
    columns = parquet(
        tmp_path / "columns.parquet",
        "SELECT l->>'id' AS id, (l->>'arrived')::BIGINT AS arrived, l->>'channel' AS channel, "
        "(l->>'receives')::INT AS receives, l->>'event' AS event "
        "FROM (SELECT unnest(?::VARCHAR[])::JSON AS l)",
        lines,
    )
    (expected,) = run("diagnose", plain, "--json").documents
    assert expected["copies"] > 10
    for path in (wholes, columns):
        assert run("diagnose", path, "--json").documents == [expected]
        assert run("filter", path).out.count("\n") == run("filter", plain).out.count("\n")
        assert run("reconcile", plain, path).code == 0


def test_a_terminal_shows_the_progress_of_reading_a_capture(tmp_path: Path) -> None:
    capture = write_lines(tmp_path / "c.jsonl", EVENT)
    command = [sys.executable, "-m", "eventonce", "reconcile", str(capture), str(capture)]
    ours, theirs = os.openpty()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as running:
        os.close(theirs)
        seen = b""
        # On Linux the end of the other side is an error.
        with suppress(OSError):
            while more := os.read(ours, 10_000):
                seen += more
        os.close(ours)
        assert running.wait() == 0
    assert b"reconcile" in seen
    assert b"100%" in seen


def test_the_first_event_to_arrive_is_the_original_in_any_order_of_the_files(
    run: Run, tmp_path: Path
) -> None:
    folder, lines = tmp_path / "capture", tmp_path / "lines"
    folder.mkdir()
    late, early = ({"eventonce": 1, "arrived": AT + n, "event": EVENT} for n in (60_000, 0))
    write_lines(folder / "1.jsonl", late)
    write_lines(folder / "2.jsonl", early)
    (found,) = run("diagnose", folder, "--lines", lines, "--json").documents
    assert found["late"]["longest"] == 60_000
    told = [json.loads(line) for line in lines.read_bytes().splitlines()]
    assert [line["copy_of"] for line in told] == [2, None]


def test_the_study_names_the_files_of_a_folder_that_it_does_not_read(
    run: Run, tmp_path: Path
) -> None:
    other = write_lines(tmp_path / "other.jsonl", EVENT)
    folder = tmp_path / "folder"
    folder.mkdir()
    write_lines(folder / "c.jsonl", EVENT)
    (folder / "notes.txt").touch()
    for words in (
        ("diagnose", folder),
        ("backtest", folder),
        ("shadow", "report", folder),
        ("reconcile", folder, other),
        ("reconcile", other, folder),
    ):
        first, *_ = run(*words, "--json").err.splitlines()
        assert "notes.txt" in json.loads(first)["error"], words


def test_links_and_pipes_that_are_not_read_are_reported_and_a_loop_of_links_ends(
    run: Run, tmp_path: Path
) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    write_lines(other / "d.jsonl", EVENT)
    write_lines(folder / "c.jsonl", EVENT)
    for name, place in {"up": "..", "self.jsonl": "self.jsonl", "gone.jsonl": "none"}.items():
        (folder / name).symlink_to(place)
    (folder / "linked.jsonl").symlink_to("../other/d.jsonl")
    os.mkfifo(folder / "pipe")
    result = run("diagnose", folder, "--json")
    assert (result.code, result.documents[0]["lines"]) == (0, 2)
    assert f"not read: {folder / 'gone.jsonl'} and 3 more;" in result.err


FULL = """
import resource, sys
# Of a module that is compiled now, the file would have as many bytes as there is room for, and
# every later process would read it.
sys.dont_write_bytecode = True
from eventonce.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
main(["diagnose", sys.argv[1]])
"""


@pytest.mark.parametrize("room", ["3000", "20000"])
def test_a_temporary_folder_that_is_full_is_named(tmp_path: Path, room: str) -> None:
    (tmp_path / "c.jsonl").write_text(f"{TEXT}\n" * 1000)
    told = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "c.jsonl", room],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1
    assert "the folder of the study, cannot be written" in told.stderr
    assert [it.name for it in tmp_path.iterdir()] == ["c.jsonl"]


@pytest.mark.parametrize("command", ["diagnose", "backtest", "reconcile"])
def test_a_study_that_reads_lines_again_refuses_a_pipe(run: Run, command: str) -> None:
    """Of a pipe it would show no fields and no findings, as if there were none."""
    out, into = os.pipe()
    os.write(into, f"{TEXT}\n".encode())
    os.close(into)
    pipe, seen = f"/dev/fd/{out}", write_lines(Path("c.jsonl"), EVENT)
    words = (seen, "--missing", "missing.jsonl") if command == "reconcile" else ()
    refused = run(command, pipe, *words)
    os.close(out)
    assert refused.code == 2
    assert f"{pipe} is a pipe, which cannot be read twice: write it to a file" in refused.err


def test_a_capture_that_was_changed_meanwhile_is_reported(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "c.jsonl", EVENT, EVENT)
    capture = Capture([path])
    assert len(list(capture)) == 2
    assert [line for line, _ in lines_at(capture, iter([1, 2]))] == [1, 2]
    write_lines(path, EVENT)
    with pytest.raises(ConfigError, match=r"c\.jsonl cannot be read a second time: it was changed"):
        list(lines_at(capture, iter([2])))
    path.unlink()
    with pytest.raises(ConfigError, match=r"a second time: .*No such file"):
        list(lines_at(capture, iter([2])))


@pytest.mark.parametrize("packed", [False, True])
def test_events_that_a_tap_adds_meanwhile_do_not_move_the_lines_of_the_next_file(
    packed: bool, tmp_path: Path
) -> None:
    def write(name: str, *numbers: int) -> None:
        lines = b"".join(b'{"id":"%d"}\n' % number for number in numbers)
        with (tmp_path / name).open("ab") as file:
            file.write(gzip.compress(lines) if packed else lines)

    write("a.jsonl", 1, 2)
    write("b.jsonl", 3)
    capture = Capture([tmp_path])
    assert len(list(capture)) == 3
    write("a.jsonl", 4)
    write("c.jsonl", 5)
    assert list(lines_at(capture, iter([2, 3]))) == [(2, b'{"id":"2"}'), (3, b'{"id":"3"}')]
    assert len(list(capture.again())) == 3
