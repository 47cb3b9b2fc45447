"""The files of a capture: each line complete and once, even after a crash, for the owner only."""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial, partialmethod
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from eventonce.aws.sessions import Access
from eventonce.envelope.captured import Arrived, line_of, own_line
from eventonce.errors import ConfigError, EnvelopeError, EventonceError
from eventonce.sources.files import Capture
from eventonce.study.arrivals import arrival
from eventonce.study.capture import Brought, record
from eventonce.study.capture.files import FileFeed
from eventonce.study.capture.log_group import LogGroupFeed
from eventonce.study.capture.recorder import Recorder, Rotation
from tests.helpers import Run, call

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
EVENTS = 3
WRITE = os.write


class Numbered:
    """A feed of numbered events, which goes on from its position."""

    def __init__(self, count: int = EVENTS) -> None:
        self.notes: list[str] = []
        self.broken = False
        self.at = 0
        self.count = count
        self.let_go = 0

    def __str__(self) -> str:
        return "numbers"

    def resume(self, position: Any) -> None:
        self.at = position or 0

    def __iter__(self) -> Iterator[Sequence[Brought]]:
        while self.at < self.count:
            self.at += 1
            yield [Arrived(call(self.at), "sqs:calls", f"m{self.at}", 1_000, 1)]

    def position(self) -> int:
        return self.at

    def committed(self) -> None:
        self.let_go = self.at

    def close(self) -> None:
        pass


def ids(folder: Path) -> list[str]:
    """The ids of the messages in all files of a folder, in their order."""
    return [arrival(line).message for line in Capture([folder])]


def at_once(path: Path, feed: Numbered, **rotation: int) -> None:
    """A commit for every event."""
    recorder = Recorder(path, str(feed), Rotation(**rotation))
    try:
        record(feed, recorder, clock=iter(range(10**6)).__next__)
    finally:
        recorder.close()


class Crash(BaseException):
    """The process ends here."""


class Steps:
    """The steps to the disk, of which one is the last."""

    def __init__(self, last: int) -> None:
        self._left = last

    def taken(self, step: Callable[..., Any], *given: Any) -> Any:
        self._left -= 1
        if self._left == 0 and step is WRITE:
            step(given[0], given[1][:-1])  # all but a byte had reached the disk
        if self._left <= 0:
            raise Crash
        return step(*given)

    def watched(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(os, "write", partial(self.taken, WRITE))
        patch.setattr(os, "fsync", partial(self.taken, os.fsync))
        for name in ("rename", "replace"):
            patch.setattr(Path, name, partialmethod(_stepped, self, getattr(Path, name)))


def _stepped(path: Path, steps: Steps, original: Callable[..., Any], target: Path) -> Any:
    return steps.taken(original, path, target)


def test_a_crash_between_any_two_steps_loses_no_line_and_repeats_none(tmp_path: Path) -> None:
    whole = [f"m{number}" for number in range(1, EVENTS + 1)]
    for last in count(1):
        folder = tmp_path / str(last)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            Steps(last).watched(patch)
            try:
                at_once(folder / "calls.jsonl.gz", Numbered(), bytes=100)
            except Crash:
                pass
            else:
                break
        at_once(folder / "calls.jsonl.gz", Numbered(), bytes=100)
        assert ids(folder) == whole, last
    assert last > 5 * EVENTS
    assert len(list(folder.glob("calls-*"))) > 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_are_readable_by_the_owner_only_and_sort_in_their_order(
    tmp_path: Path, ending: str
) -> None:
    at_once(tmp_path / f"calls{ending}", Numbered(), bytes=1)
    files = sorted(tmp_path.iterdir())
    assert len(files) == EVENTS + 1
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert ids(tmp_path) == [f"m{number}" for number in range(1, EVENTS + 1)]


def test_a_file_that_is_old_is_finished(tmp_path: Path) -> None:
    at_once(tmp_path / "calls.jsonl", Numbered(2), age=0)
    assert len(list(tmp_path.glob("calls*.jsonl"))) == 2


def test_a_full_disk_ends_a_capture_with_an_error_and_leaves_a_readable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "calls.jsonl.gz"
    at_once(path, Numbered(2))

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 5:
            return original(descriptor, data[:5])
        raise OSError(28, "No space left on device")

    original = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(EventonceError, match="No space left on device"):
            at_once(path, Numbered())
    assert ids(tmp_path) == ["m1", "m2"]
    at_once(path, Numbered())
    assert len(ids(tmp_path)) == EVENTS


def test_a_file_that_is_no_capture_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text("mine\n")
    with pytest.raises(ConfigError, match="name another file"):
        Recorder(path, "numbers")
    assert path.read_text() == "mine\n"


def test_a_file_beside_an_empty_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    nothing = Recorder(path, "numbers")
    nothing.commit([], 5)
    nothing.close()
    path.write_text("mine\n")
    with pytest.raises(ConfigError, match="name another file"):
        Recorder(path, "numbers")
    assert path.read_text() == "mine\n"
    path.unlink()
    assert Recorder(path, "numbers").position == 5


def test_a_capture_of_another_source_and_a_file_that_was_cut_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    at_once(path, Numbered())
    with pytest.raises(ConfigError, match="begun as a capture of numbers, not of letters"):
        Recorder(path, "letters")
    os.truncate(path, 10)
    with pytest.raises(ConfigError, match="it was changed"):
        Recorder(path, "numbers")


def test_two_captures_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    at_once(path, Numbered())
    first = Recorder(path, "numbers")
    with pytest.raises(ConfigError, match="another process writes"):
        Recorder(path, "numbers")
    first.close()


def test_a_capture_that_begins_late_does_not_cut_off_another_that_ended(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    late = Recorder(path, "numbers")
    at_once(path, Numbered())
    with pytest.raises(ConfigError, match="another process writes"):
        late.commit([b"{}"], 1)
    late.close()
    assert ids(tmp_path) == ["m1", "m2", "m3"]


@pytest.mark.parametrize("name", ["calls.txt", "calls", ".jsonl", "calls.gz"])
def test_a_capture_with_an_unknown_file_ending_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="ends with"):
        Recorder(tmp_path / name, "numbers")


@pytest.mark.parametrize(
    "body", [b"no json", b"two\r\nlines", b"\xff\xfe\n", b"[1]", b'"text"', b'{"a": ', b""]
)
def test_a_body_that_is_no_event_becomes_one_line_with_its_arrival_and_its_bytes(
    body: bytes,
) -> None:
    line = line_of(Arrived(body, "sqs:calls", "m1", 5, 2))
    assert b"\n" not in line
    told = own_line(line)
    assert told is not None
    assert (told.id, told.arrived, told.channel, told.receives) == ("m1", 5, "sqs:calls", 2)
    kept = b64decode(told.event_base64) or json.loads(bytes(told.event)).encode()
    assert kept == body
    assert isinstance(arrival(line).event, EnvelopeError)


def test_an_event_over_many_lines_becomes_one_line() -> None:
    body = b'{\r\n  "detail-type": "call",\n  "id": "1", "detail": {"text": "a\\nb"}\n}\n'
    line = line_of(Arrived(body, "sqs:calls"))
    assert b"\n" not in line
    assert arrival(line).event.detail == {"text": "a\nb"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        b'\xef\xbb\xbf{"eventonce":1,"id":"m1","arrived":7,"channel":"sqs:calls","event":%b}',
        b'{"eventonce":1,\r\n "id":"m1","arrived":7,"channel":"sqs:calls",\n "event":%b}',
        b'{\n  "arrived": 7, "channel": "sqs:calls", "event": %b, "eventonce": 1, "id": "m1"\n}',
    ],
    ids=["byte order mark", "many lines", "another order"],
)
def test_a_line_that_another_tool_rewrote_is_one_event_with_its_arrival(
    tmp_path: Path, text: bytes
) -> None:
    plain = tmp_path / "plain.json"
    plain.write_bytes(text % call(1) + b"\n" + text % call(2))
    assert [(one.message, one.arrived) for one in map(arrival, Capture([plain]))] == [("m1", 7)] * 2
    feed = FileFeed([plain])
    recorder = Recorder(tmp_path / "calls.jsonl", str(feed))
    record(feed, recorder)
    recorder.close()
    written = (tmp_path / "calls.jsonl").read_bytes().splitlines()
    found = [own_line(line) for line in written]
    assert [(one.id, one.arrived) for one in found if one is not None] == [("m1", 7)] * 2


def test_a_file_that_grew_after_it_was_read_is_named(tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(call(1) + b"\n")
    for broken in (False, True):
        feed = FileFeed([plain])
        recorder = Recorder(tmp_path / "calls.jsonl", str(feed))
        record(feed, recorder)
        recorder.close()
        assert feed.broken is broken
        plain.write_bytes(call(1) + b"\n" + call(2) + b"\n")
    assert "was changed since it was read" in feed.notes[0]


def test_a_capture_without_a_new_event_is_reported(run: Run, tmp_path: Path) -> None:
    events, output = tmp_path / "events", tmp_path / "calls.jsonl"
    events.mkdir()
    for lines, said in (((), "no new event"), ((call(1),), "1 event, "), ((), "no new event")):
        for line in lines:
            (events / "1.jsonl").write_bytes(line + b"\n")
        assert f"\n{said}" in run("capture", "--from", events, "-o", output).err
    assert len(output.read_bytes().splitlines()) == 1


def test_the_file_pattern_of_the_next_command_is_quoted_for_the_shell(tmp_path: Path) -> None:
    path = tmp_path / "my [calls].jsonl"
    recorder = Recorder(path, "numbers", Rotation(bytes=1))
    patterns = []
    for number in range(2):
        recorder.commit([b"{}"], number)
        patterns.append(recorder.pattern)
    recorder.close()
    for pattern, files in zip(patterns, (1, 2), strict=True):
        listed = subprocess.run(["sh", "-c", f"ls {pattern}"], stdout=subprocess.PIPE, check=True)
        assert len(listed.stdout.splitlines()) == files


class Logs:
    """CloudWatch Logs as its page describes it: lines by their time, some at a time."""

    def __init__(self, *lines: tuple[int, str]) -> None:
        self.lines: list[dict[str, Any]] = [
            {"timestamp": at, "ingestionTime": at + 7, "eventId": name, "message": call(1).decode()}
            for at, name in lines
        ]
        self.answers = 0

    def call(self, operation: str, /, **asked: Any) -> dict[str, Any]:
        assert operation == "filter_log_events"
        self.answers += 1
        found = [line for line in self.lines if line["timestamp"] >= asked["startTime"]]
        begin = int(asked.get("nextToken", 0))
        more = {"nextToken": str(begin + 3)} if begin + 3 < len(found) else {}
        return {"events": found[begin : begin + 3], **more}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("pages", range(1, 6))
def test_a_log_group_whose_capture_stopped_after_any_page_is_read_once(
    tmp_path: Path, pages: int
) -> None:
    # Several lines of one instant, which a page may part.
    logs = Logs(*((at, f"{at}-{number}") for at in (10, 20, 30) for number in range(5)))
    for most in (pages, 99):
        feed = LogGroupFeed("/aws/events/calls", Access())
        feed._client = logs  # type: ignore[assignment]
        recorder = Recorder(tmp_path / "logs.jsonl", str(feed))
        logs.answers = 0
        left = partial(_has_answered, logs, most)
        record(feed, recorder, stopping=left, clock=iter(range(10**6)).__next__)
        recorder.close()
    assert ids(tmp_path) == [line["eventId"] for line in logs.lines]


def test_a_log_group_of_another_region_or_an_earlier_time_is_another_capture(
    tmp_path: Path,
) -> None:
    def captured(region: str, begin: int) -> None:
        feed = LogGroupFeed("/aws/events/calls", Access(region), begin=begin)
        feed._client = Logs((30, "a"))  # type: ignore[assignment]
        with closing(Recorder(tmp_path / "logs.jsonl", str(feed))) as recorder:
            record(feed, recorder)

    for begin in (20, 25, 20):
        captured("eu-central-1", begin)
    with pytest.raises(ConfigError, match="later lines than --since"):
        captured("eu-central-1", 19)
    with pytest.raises(ConfigError, match="begun as a capture of"):
        captured("us-east-1", 20)


def _has_answered(logs: Logs, count: int) -> bool:
    return logs.answers >= count
