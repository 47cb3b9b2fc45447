"""A source, a sink and a preset of a new kind, each added with one file and one line of
registration."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from eventonce import Consumer, presets, sinks, sources
from eventonce.cli import main
from eventonce.config import load
from eventonce.config.checks import CHECKS, check
from eventonce.errors import ConfigError
from eventonce.sinks import Sink, open_sink
from tests.helpers import Run

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

PRESET = """
version = 1
description = "the orders of a shop"

[[rule]]
name = "shop.order"
match = { source = "com.example.shop" }
key = ["detail.order"]
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


def test_a_source_and_a_sink_of_a_new_kind_work_from_python_and_in_error_messages() -> None:
    source: Any = sources.open_source("count:3", wait=2.0, visibility=60.0)
    assert (source.left, source.wait) == (3, 2.0), "of the options a source gets its own"
    with pytest.raises(ConfigError, match=r"write sqs://.* Other sources: count:…"):
        sources.open_source("cuont:3")
    sink: Any = open_sink(Sink("tally:other.txt"))
    assert sink.path == Path("other.txt")
    assert sinks.Tally is type(sink)
    with pytest.raises(Exception, match=r"tally:file\.txt"):
        open_sink(Sink("talli:file.txt"))
    assert load().worker.queue == "count:25"


def test_a_doctor_says_which_new_kinds_it_does_not_check(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast("dict[Any, Any]", CHECKS), ("letters",), str)
    file = Path("eventonce.toml")
    file.write_text('letters = "tally:dead.txt"\n' + file.read_text())
    said = run("doctor").out
    assert "not checked: the source of the worker count:25: only SQS queues are checked" in said
    assert "not checked: the place of dead letters tally:dead.txt: only SQS queues" in said
    assert "every rule remembers longer" in said


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "presets"
    shutil.copytree(Path(presets.__file__).parent, folder)
    (folder / "shop.toml").write_text(PRESET)
    caches = (presets.load, presets._texts, presets._auto)
    with monkeypatch.context() as patched:
        patched.setattr(presets, "__file__", str(folder / "__init__.py"))
        patched.setattr(presets, "_AUTO_ORDER", ("shop", *presets._AUTO_ORDER))
        for cached in caches:
            cached.cache_clear()
        yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("rules", ["shop", "shop@1", "auto"])
def test_a_preset_is_found_by_its_file_and_used_by_auto(rules: str) -> None:
    assert presets.names()["shop"] == "the orders of a shop"
    first, again = (
        {"source": "com.example.shop", "detail-type": "o", "id": id_, "detail": {"order": 7}}
        for id_ in ("1", "2")
    )
    with Consumer("memory:", rules=rules, handler=lambda _: None) as consumer:
        outcomes = consumer.process([first, again])
    assert [(one.status, one.rule) for one in outcomes] == [
        ("done", "shop.order"),
        ("duplicate", "shop.order"),
    ]
