"""`eventonce run` on a capture: the messages about unhandled and failed events."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventonce.cli.logs import log_to_stderr
from eventonce.cli.output import CLEAR_LINE
from eventonce.stores import ADAPTERS, Adapter
from eventonce.stores.memory import MemoryStore
from eventonce.worker import Worker
from tests.helpers import PATIENCE, Run, WatchedStore, full

EVENT = '{"id": "%s", "source": "s", "detail-type": "%s", "detail": {}}\n'
HANDLERS = """
def take(job):
    pass

def trip(job):
    job.event.detail["call"]
"""
HANGING = """
import os, signal, threading
from contextlib import contextmanager
from eventonce.cli import run

@contextmanager
def not_answering(*_):
    yield
    threading.Event().wait()

run.keeping_history = not_answering

def hang(job):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()
"""

Ran = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ran(tmp_path: Path) -> Ran:
    """A run over the folder `captured`, with a sink for `call.ended` only."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "captured").mkdir()

    def ran(
        *arguments: str, module: str = "handlers", sink: str = "take", said: str = ""
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "eventonce.toml").write_text(
            f'store = "memory:"\n{said}[override]\nattempts = 1\n'
            f'[[sink]]\nmatch = "call.ended"\nto = "{module}:{sink}"\n'
        )
        return subprocess.run(
            [sys.executable, "-m", "eventonce", "run", *(arguments or ("--from", "captured"))],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    return ran


def write(folder: Path, *types: str) -> None:
    lines = (EVENT % one for one in enumerate(types))
    (folder / "captured" / "1.jsonl").write_text("".join(lines))


def test_a_match_that_fits_no_event_is_reported_for_each_type_and_at_the_end(
    ran: Ran, tmp_path: Path
) -> None:
    write(tmp_path, "call.end", "call.end", "call.start")
    told = ran()
    assert told.returncode == 0
    assert told.stderr.count("no handler takes events of type 'call.end'") == 1
    assert told.stderr.count("no handler takes events of type 'call.start'") == 1
    assert "all events were ignored: check `match` of the sinks" in told.stderr


def test_the_hint_at_the_end_is_absent_if_one_event_was_handled(ran: Ran, tmp_path: Path) -> None:
    write(tmp_path, "call.ended", "call.start")
    told = ran()
    assert told.stderr.count("no handler takes events of type 'call.start'") == 1
    assert "all events were ignored" not in told.stderr


def test_a_handler_that_fails_is_reported_with_its_traceback(ran: Ran, tmp_path: Path) -> None:
    write(tmp_path, "call.ended")
    told = ran(sink="trip")
    assert told.returncode == 1
    assert 'handlers.py", line 6, in trip' in told.stderr


def test_another_file_beside_the_capture_is_reported_and_becomes_no_dead_letter(
    ran: Ran, tmp_path: Path
) -> None:
    write(tmp_path, "call.ended")
    (tmp_path / "captured" / "README.txt").write_text("Calls of a morning.\n")
    told = ran()
    assert told.returncode == 0
    assert "not read: captured/README.txt; of a folder only" in told.stderr
    assert "1 delivery, 1 done" in told.stderr


@pytest.mark.parametrize("text", ["", "[]"])
def test_a_capture_without_events_is_named(ran: Ran, tmp_path: Path, text: str) -> None:
    (tmp_path / "captured" / "1.json").write_text(text)
    told = ran()
    assert (told.returncode, "no events in captured" in told.stderr) == (0, True)


def test_a_line_of_the_log_is_not_written_behind_the_progress_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(logging.root, "handlers", [])
    log_to_stderr("text", bar=True)
    logging.getLogger("eventonce").warning("one")
    assert terminal.getvalue().startswith(CLEAR_LINE)


def test_the_queue_of_the_command_line_is_refused_as_the_queue_of_dead_letters(ran: Ran) -> None:
    told = ran("--queue", "sqs://calls?region=eu-central-1", said='letters = "sqs://calls"\n')
    assert told.returncode == 2
    assert "each would be received again for ever" in told.stderr


class Full(WatchedStore):
    """A store that answers, and takes no write."""

    @classmethod
    def from_uri(cls, uri: str) -> MemoryStore:
        return cls(full())


def test_a_run_over_a_capture_does_not_begin_with_a_store_that_takes_no_write(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "run", lambda _: pytest.fail("the run began"))
    monkeypatch.setitem(ADAPTERS, "full", Adapter(f"{__name__}:Full"))
    (tmp_path / "captured").mkdir()
    write(tmp_path, "call.ended")
    config = tmp_path / "calls.toml"
    config.write_text('store = "full://"\n[[sink]]\nmatch = "*"\nto = "builtins:print"\n')
    told = run("run", "-c", config, "--from", tmp_path / "captured")
    assert (told.code, told.err) == (3, "eventonce: full\n")


def test_a_handler_ends_with_its_process_although_the_history_does_not_answer(
    ran: Ran, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    write(tmp_path, "call.ended")
    ended = ran("--from", "captured", "--drain", "10ms", sink="hang", module="hanging")
    assert ended.returncode == 1
    assert "1 events are not finished" in ended.stderr
