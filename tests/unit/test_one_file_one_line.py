"""A source and a sink of a new kind, each added with one file and one line of registration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from eventonce import sinks, sources
from eventonce.cli import main
from eventonce.config import load
from eventonce.config.checks import check
from eventonce.sinks import Sink, open_sink

SOURCE = """
from eventonce.core.ports import Delivery

class CountSource:
    hold = float("inf")

    def __init__(self, uri, *, wait=0.0):
        self.left = int(uri.removeprefix("count:"))
        self.wait = wait

    @property
    def ended(self):
        return not self.left

    def receive(self, most):
        taken, self.left = min(most, self.left), self.left - min(most, self.left)
        return [
            Delivery(
                b'{"id": "%d", "detail-type": "counted", "detail": {}}' % (self.left + number),
                str(self.left + number),
            )
            for number in range(taken)
        ]

    def acknowledge(self, deliveries):
        pass

    def postpone(self, deliveries):
        pass

    def close(self):
        pass
"""

SINK = """
from pathlib import Path

class Tally:
    def __init__(self, uri, *, group=""):
        self.path = Path(uri.removeprefix("tally:"))
        self.group = group

    def __call__(self, job):
        with self.path.open("a") as file:
            file.write(f"{self.group}{job.event.id}\\n")
"""


@pytest.fixture(autouse=True)
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package, name, text in ((sources, "counting", SOURCE), (sinks, "tallying", SINK)):
        folder = tmp_path / package.__name__
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.setitem(
        cast("dict[str, Any]", sources.KINDS),
        *("count", sources.Kind("counting", "CountSource", ("wait",))),
    )
    monkeypatch.setitem(
        cast("dict[str, Any]", sinks.KINDS),
        *("tally", sinks.Kind("tallying", "Tally", "tally:file.txt", ("group",))),
    )
    monkeypatch.chdir(tmp_path)
    Path("eventonce.toml").write_text(
        'store = "memory:"\n[worker]\nqueue = "count:25"\nwait = "1s"\n'
        '[[sink]]\nto = "tally:tally.txt"\ngroup = "n"\n'
    )


def test_a_source_and_a_sink_of_a_new_kind_work_from_the_file() -> None:
    check(Path("eventonce.toml"))
    with pytest.raises(SystemExit) as ended:
        main(["run"])
    assert not ended.value.code
    lines = Path("tally.txt").read_text().splitlines()
    assert sorted(lines) == sorted(f"n{number}" for number in range(25))


def test_they_are_used_from_python_and_named_in_complaints() -> None:
    source: Any = sources.open_source("count:3", wait=2.0, visibility=60.0)
    assert (source.left, source.wait) == (3, 2.0), "of the options a source gets its own"
    sink: Any = open_sink(Sink("tally:other.txt"))
    assert sink.path == Path("other.txt")
    assert sinks.Tally is type(sink)
    with pytest.raises(Exception, match=r"tally:file\.txt"):
        open_sink(Sink("talli:file.txt"))
    assert load().worker.queue == "count:25"
