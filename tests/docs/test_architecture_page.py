"""docs/architecture.md is true: its files and names exist, and every package is a room of it."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import FrameType

from eventonce import Consumer
from eventonce.stores.memory import MemoryStore
from tests.docs.pages import DOCS
from tests.helpers import until
from tests.unit.test_worker_whole import InMemorySource, delivery, working

SOURCE = Path(__file__).parents[2] / "src" / "eventonce"
TEXT = (DOCS / "architecture.md").read_text(encoding="utf-8")


def test_every_file_on_the_page_exists() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", TEXT))
    assert len(named) > 15
    inside = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    assert {name for name in named if "/" in name} <= inside
    assert {Path(name).name for name in named} <= {Path(name).name for name in inside}


def test_every_package_is_a_room_of_the_page() -> None:
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"`([a-z]+)/", TEXT))


def test_every_table_that_takes_a_line_is_where_the_page_says() -> None:
    found = re.findall(r"`(_?[A-Z_]{4,})`(?: or `([A-Z_]+)`)? of `([a-z_/]+\.py)`", TEXT)
    assert len(found) >= 6
    for first, second, file in found:
        for name in filter(None, (first, second)):
            assert re.search(rf"^{name}\b", (SOURCE / file).read_text(), re.MULTILINE), name


def test_every_file_that_a_message_passes_is_on_the_page() -> None:
    passed: set[str] = set()

    def note(frame: FrameType, *_: object) -> None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            passed.add(path.relative_to(SOURCE).as_posix())

    source = InMemorySource()
    source.waiting = [delivery(number) for number in range(5)]
    threading.setprofile(note)
    try:
        with working(Consumer(MemoryStore(), handler=lambda _: None), source):
            until(lambda: len(source.acknowledged) == 5)
    finally:
        threading.setprofile(None)
    assert {"worker/fetcher.py", "core/engine.py", "worker/ack_buffer.py"} <= passed
    stores = {file for file in passed if file.startswith("stores/")}
    assert {file for file in passed - stores if f"`{file}`" not in TEXT} == set()
