from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from eventonce.errors import ConfigError
from eventonce.sources import FileSource
from eventonce.sources.files import Capture
from tests.helpers import write_lines

PRETTY = b'{\n  "a": 1,\n  "b": [\n    2\n  ]\n}\n'

ELEMENTS = [b'{"a":1}', b"{bad}", b"7", b'"x, y"', b"1", b'{"a":"]"}']


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress])
@pytest.mark.parametrize(
    ("content", "events"),
    [
        (b'{"a":1}\n{"a":2}\n', [b'{"a":1}', b'{"a":2}']),
        (b'\n\n{"a":1}\r\n\n{"a":2}', [b'{"a":1}', b'{"a":2}']),
        (b'\xef\xbb\xbf{"a":1}\n{"a":2}', [b'\xef\xbb\xbf{"a":1}', b'{"a":2}']),
        (b'[{"a":1}, {"a":2}]', [b'{"a":1}', b'{"a":2}']),
        (b'[\n  {"a":1},\n  {"a":2}\n]\n', [b'{"a":1}', b'{"a":2}']),
        (b'[{"a":1}, {"a"', [b'{"a":1}', b'{"a"']),
        (b'\xef\xbb\xbf[{"a":1}, {bad}, 7,\n"x, y", [1], {"a":"]"}]', ELEMENTS),
        (PRETTY, [PRETTY.strip()]),
        (PRETTY + PRETTY, [PRETTY.strip()] * 2),
        (b'{"a":1}{"a":2} {"a":"}"}', [b'{"a":1}', b'{"a":2}', b'{"a":"}"}']),
        (b'{"a":1}}\n{"a":2}\n', [b'{"a":1}}', b'{"a":2}']),
        (b'{"Records":[{"a":1},{"a":2}]}\n{"a":3}', [b'{"a":1}', b'{"a":2}', b'{"a":3}']),
        (b'{"broken"\n{"a":2}\nno event\n', [b'{"broken"', b'{"a":2}', b"no event"]),
        (b"", []),
        (b"\n \n", []),
    ],
)
def test_a_capture_is_lines_or_an_array_or_one_document(
    tmp_path: Path, content: bytes, events: list[bytes], pack: Callable[[bytes], bytes]
) -> None:
    file = tmp_path / "capture"
    file.write_bytes(pack(content))
    capture = Capture([file])
    assert list(capture) == events
    assert capture.position == capture.size == file.stat().st_size


def test_the_position_in_a_capture_follows_its_events_and_not_the_chunks_that_are_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "capture").write_bytes(b'{"a":1}\n' * 4)
    capture = Capture([tmp_path / "capture"])
    assert [capture.position for _ in capture] == [8, 16, 24, 32]


def test_a_folder_is_read_in_the_order_of_names_and_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b/2.json", "a.jsonl", ".hidden", ".git/3.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'"{name}"\n')
    assert list(Capture([tmp_path])) == [b'"a.jsonl"', b'"b/2.json"']


def test_other_files_of_a_folder_are_passed_over_unless_they_are_named(
    tmp_path: Path,
) -> None:
    names = ("1.JSON", "2.ndjson", "3.jsonl.gz", "4.gz", "calls-2026-11-15-id", "a.txt", "b.md")
    for name in (*names, ".hidden"):
        (tmp_path / name).write_text(f'"{name}"\n')
    capture = Capture([tmp_path])
    assert list(capture) == [f'"{name}"'.encode() for name in names[:5]]
    assert f"not read: {tmp_path / 'a.txt'} and 1 more" in capture.passed_over
    named = Capture([tmp_path / "a.txt"])
    assert (list(named), named.passed_over) == ([b'"a.txt"'], "")


def test_a_folder_of_which_every_file_is_passed_over_is_an_error(tmp_path: Path) -> None:
    assert list(Capture([tmp_path])) == []
    (tmp_path / "events.txt").write_text('{"a":1}\n')
    with pytest.raises(ConfigError, match=r"not read: .*events.txt; of a folder only"):
        Capture([tmp_path])


def test_an_event_too_long_to_hold_is_named_and_never_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "capture"
    file.write_bytes(b'{"a":1}\n{"a":2}\n' + b"y" * 25)
    lines = FileSource([file])
    lines.capture._longest = 10
    assert [one.body for one in lines.receive(10)] == [b'{"a":1}', b'{"a":2}']
    assert lines.unread == f"{file}:3 was not read: an event of more than 10 bytes"


def test_a_capture_that_ends_too_soon_is_an_error_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "capture.gz"
    file.write_bytes(gzip.compress(b'{"a":1}\n' * 1000)[:-20])
    with pytest.raises(ConfigError, match=r"capture\.gz cannot be read to its end"):
        list(Capture([file]))


def test_the_files_before_and_after_a_broken_file_are_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "1.jsonl").write_bytes(b'{"a":1}\n{"a":2}\n')
    (tmp_path / "2.jsonl").write_bytes(gzip.compress(b'{"a":3}\n')[:-4])
    (tmp_path / "3.jsonl").write_bytes(b'{"a":4}\n')
    lines = FileSource([tmp_path])
    bodies = [one.body for one in lines.receive(10)]
    assert bodies[:2] + bodies[-1:] == [b'{"a":1}', b'{"a":2}', b'{"a":4}']
    assert lines.ended
    assert "2.jsonl cannot be read to its end" in lines.unread


def _lines(tmp_path: Path, events: int, **options: float) -> FileSource:
    file = tmp_path / "capture"
    file.write_text("".join(f'{{"n":{number}}}\n' for number in range(events)))
    return FileSource([file], **options)


def test_a_capture_is_named_by_a_path_or_a_text_in_a_list(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "c.jsonl", "1", "2")
    assert list(FileSource([str(file)]).capture) == [b"1", b"2"]
    for alone in (str(file), file):
        with pytest.raises(ConfigError, match="expected a list of captures, such as"):
            FileSource(alone)  # type: ignore[arg-type]


def test_lines_are_given_once_each_and_then_the_source_has_ended(tmp_path: Path) -> None:
    lines = _lines(tmp_path, 5)
    given = lines.receive(3)
    assert not lines.ended
    given += lines.receive(3)
    assert [one.body for one in given] == [b'{"n":%d}' % number for number in range(5)]
    assert lines.ended
    lines.acknowledge(given)
    lines.close()


def test_a_postponed_line_is_given_again_when_its_time_has_come(tmp_path: Path) -> None:
    lines = _lines(tmp_path, 2)
    first, second = lines.receive(5)
    lines.postpone([(first, 0.0), (second, 3_600.0)])
    assert not lines.ended
    (again,) = lines.receive(5)
    assert (again.body, again.times) == (first.body, 2)
    assert again is not first
    assert lines.receive(5) == []
    assert not lines.ended
    lines.close()


def test_the_rate_is_a_limit_also_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    lines = _lines(tmp_path, 100, rate=10)
    assert lines.receive(10) == []
    now += 0.55
    assert len(lines.receive(10)) == 5
    assert lines.receive(10) == []
    now += 60
    # After a pause, only the lines of one second are given at once.
    assert len(lines.receive(100)) == 10
    lines.close()
