"""SIGHUP: the rules of the file are read again, and a file with a fault changes no rule."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from eventonce import Consumer
from eventonce.cli import reload
from eventonce.cli.options import Settings
from eventonce.cli.reload import called_by_hangup, rules_reloaded
from eventonce.cli.signals import ended_by_signals, handled
from eventonce.config import Config
from eventonce.runtime.shadow import Decided, shadow_observer
from tests.helpers import call, statuses, until

FILE = """
store = "memory:"
presets = []
{more}
[[rule]]
name = "call"
match = "call"
key = ["{key}"]
shadow = {shadow}
"""


class Place:
    """A configuration file, and a consumer of it whose rules are read again at SIGHUP."""

    def __init__(self, path: Path, more: str = "") -> None:
        self.path = path
        self.write("detail.call", more=more)
        self.settings = Settings(path)
        self.consumer = self.settings.file.consumer()
        self.consumer.on()(lambda _: None)

    def write(self, key: str, *, more: str = "", shadow: str = "false") -> None:
        self.path.write_text(FILE.format(key=key, more=more, shadow=shadow))

    def hang_up(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    def reload(self) -> None:
        before = self.consumer.rules
        self.hang_up()
        until(lambda: self.consumer.rules is not before)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "crm.toml")
    with place.consumer, rules_reloaded(place.settings, place.consumer):
        yield place


def test_the_rules_are_read_again_and_other_changed_settings_are_named_in_the_log(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    process = place.consumer.process
    assert statuses(process([call(1, n=11), call(1, n=12)])) == ["done", "duplicate"]
    place.write("detail.n")
    place.reload()
    again = process([call(1, n=11), call(1, n=12), call(2, n=12)])
    assert statuses(again) == ["done", "done", "duplicate"]
    assert "the rules in use are those of the file now, 1" in caplog.text
    assert "need a restart" not in caplog.text
    place.write("detail.call", more='unhandled = "letter"\nserve.port = 8099\nserve.host = "::1"')
    place.reload()
    said = "other settings have changed too, and need a restart: "
    until(lambda: said in caplog.text)
    (named,) = [it.partition(said)[2] for it in caplog.messages if said in it]
    assert sorted(named.split(", ")) == ["serve.host", "serve.port", "unhandled"]


@pytest.mark.parametrize(
    "fault", ['presets = ["nothing"]', "nonsense", "unknown = 1", f"x = {'[' * 3000}"]
)
def test_a_file_with_a_fault_changes_no_rule(
    place: Place, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    rules = place.consumer.rules
    text = place.path.read_text()
    place.path.write_text(f"{fault}\n{text.replace('presets = []', '')}")
    place.hang_up()
    until(lambda: "SIGHUP: the rules stay as they are: " in caplog.text)
    assert any(said in caplog.text for said in ("crm.toml:1", "nothing", "too deep"))
    assert place.consumer.rules is rules
    assert statuses(place.consumer.process([call(1), call(1)])) == ["done", "duplicate"]


SECRET = 'secrets = ["a secret of enough length"]'


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("", "`store`, `presets`, `rule`, the secret in use"),
        (f'store = "memory:"\npresets = []\n{SECRET}', "`rule`"),
        (FILE.format(key="detail.n", more="", shadow="false"), "the secret in use"),
        (
            FILE.format(key="detail.n", more=SECRET.replace("a secret", "another"), shadow="false"),
            "the secret in use",
        ),
    ],
)
def test_a_truncated_file_changes_no_rule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, lost: str
) -> None:
    """With other keys, events that took effect would run again."""
    place = Place(tmp_path / "crm.toml", more=SECRET)
    with place.consumer, rules_reloaded(place.settings, place.consumer):
        rules, whole = place.consumer.rules, place.path.read_text()
        place.path.write_text(text)
        place.hang_up()
        until(lambda: f"the rules stay as they are: the file no longer has {lost}" in caplog.text)
        assert place.consumer.rules is rules
        # A rotation: the new secret first.
        place.path.write_text(whole.replace('["a secret', '["another one of enough", "a secret'))
        place.reload()
    assert "gone" not in caplog.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('history.keep = "10d"', 'history.keep = "30d"'),
        ("privacy.digests = false", "privacy.digests = true"),
    ],
)
def test_a_setting_that_now_has_its_default_is_accepted(
    tmp_path: Path, before: str, after: str
) -> None:
    place = Place(tmp_path / "crm.toml", more=before)
    with place.consumer, rules_reloaded(place.settings, place.consumer):
        place.write("detail.n", more=after)
        place.reload()
        place.path.write_text(place.path.read_text().replace("presets = []", 'presets = ["auto"]'))
        place.reload()


def test_rules_that_move_into_a_separate_file_are_accepted(place: Place) -> None:
    head, rule = place.path.read_text().split("[[rule]]")
    (place.path.parent / "rules.toml").write_text(f"[[rule]]{rule}")
    place.path.write_text(f'{head}\nrules = ["{place.path.parent}/rules.toml"]\n')
    place.reload()


def test_removed_rules_are_named_in_the_log(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.path.write_text(place.path.read_text().replace('name = "call"', 'name = "ring"'))
    place.reload()
    until(lambda: "rules that are gone: call" in caplog.text)


def test_only_a_history_whose_ids_are_by_the_old_secrets_is_reported_to_need_a_restart(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    reloaded = "SIGHUP: the rules in use are those of the file now, 1"
    others = "SIGHUP: other settings have changed too, and need a restart: history.store"
    said = "SIGHUP: the history has ids by the secrets of before, until a restart"
    secrets = 'secrets = ["a secret of enough length"]'
    place.write("detail.call", more=secrets)
    place.reload()
    place.write("detail.call", more=f'{secrets}\nhistory.store = "sqlite:///h.db"')
    place.reload()
    until(lambda: len(caplog.messages) > 3)
    assert caplog.messages == [reloaded, reloaded, others, said]


@pytest.mark.parametrize("named", [True, False])
def test_a_deleted_file_changes_no_rule(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    named: bool,
) -> None:
    """A deployment may write the file again a moment later."""
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path / "eventonce.toml")
    settings = place.settings if named else Settings()
    with place.consumer, rules_reloaded(settings, place.consumer):
        rules, text = place.consumer.rules, place.path.read_text()
        place.path.unlink()
        place.hang_up()
        until(lambda: "SIGHUP: the rules" in caplog.text)
        assert "eventonce.toml cannot be read: No such file" in caplog.text
        assert place.consumer.rules is rules
        place.path.write_text(text)
        place.reload()


def test_the_decisions_of_rules_put_into_shadow_mode_are_reported(place: Place) -> None:
    told: list[Decided] = []
    place.consumer.observers.append(shadow_observer(place.consumer, told.append))
    place.consumer.process([call(1)])
    assert told == []
    place.write("detail.call", shadow="true")
    place.reload()
    place.consumer.process([call(1)])
    assert [one.outcome.shadowed for one in told] == ["duplicate"]


def test_many_signals_at_once_start_one_thread_and_few_calls() -> None:
    begun, over, calls = threading.Event(), threading.Event(), list[int]()

    def readers() -> int:
        return sum(one.name == "eventonce-reload" for one in {*threading.enumerate()} - others)

    def slow() -> None:
        calls.append(readers())
        begun.set()
        over.wait()

    others = {*threading.enumerate()}
    with called_by_hangup(slow):
        os.kill(os.getpid(), signal.SIGHUP)
        begun.wait()
        for _ in range(200):
            os.kill(os.getpid(), signal.SIGHUP)
        assert readers() == 1
        over.set()
        until(lambda: len(calls) == 2)
        os.kill(os.getpid(), signal.SIGHUP)
        until(lambda: len(calls) == 3)
    assert calls == [1, 1, 1]
    until(lambda: not readers())


def test_an_internal_error_does_not_end_the_handling_of_sighup(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Config, "ruleset", fail)
        place.hang_up()
        until(lambda: "SIGHUP: the rules stay as they are" in caplog.text)
    place.reload()


OWN = Consumer("memory:", handler=lambda _: None)


def test_the_rules_of_a_program_are_not_replaced(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    rules = OWN.rules
    with rules_reloaded(place.settings, OWN, "tests.unit.test_reload:OWN"):
        place.hang_up()
        until(lambda: "has rules of its own" in caplog.text)
    assert OWN.rules is rules


def test_the_headers_that_new_rules_name_are_kept(place: Place) -> None:
    assert "x-tenant" not in place.consumer.kept_headers
    place.write("headers.x-tenant")
    place.reload()
    assert "x-tenant" in place.consumer.kept_headers


ON_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
serve = ["-m", "eventonce", "serve", "--port", "0", "--handler", "builtins:print"]
os.execv(sys.executable, [sys.executable, *serve])
"""
"""A receiver with the terminal of its stdin; as `nohup` starts it, if SIGHUP is ignored."""


@pytest.mark.parametrize("under_nohup", [False, True])
def test_a_receiver_ends_when_its_terminal_is_closed_unless_it_runs_under_nohup(
    tmp_path: Path, under_nohup: bool
) -> None:
    Place(tmp_path / "eventonce.toml").consumer.close()
    ours, theirs = os.openpty()
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        words = [sys.executable, "-c", ON_TERMINAL, "SIG_IGN" if under_nohup else "SIG_DFL"]
        process = subprocess.Popen(
            words,
            stdin=theirs,
            stdout=stderr,
            stderr=stderr,
            cwd=tmp_path,
            start_new_session=True,
        )
    os.close(theirs)
    try:
        until(lambda: b"listening on" in log.read_bytes(), log.read_text)
        url = log.read_text().split()[2].replace("/events;", "/health")
        # An answer proves that its signals are handled by now.
        urllib3.request("GET", url)
        os.close(ours)
        if under_nohup:
            until(lambda: b"SIGHUP: the rules in use are those of the file now" in log.read_bytes())
            process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("before", [(), (signal.SIGINT,)])
def test_a_closed_terminal_ends_the_command_once_also_after_ctrl_c(
    before: tuple[signal.Signals, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell and the system send one each, and a second signal does not wait for handlers."""
    terminals = iter([True])
    ended = list[str]()
    monkeypatch.setattr(reload, "_has_terminal", lambda: next(terminals, False))
    monkeypatch.setattr("os._exit", lambda _: ended.append("at once"))
    with called_by_hangup(lambda: ended.append("reloaded")), ended_by_signals(ended.append):
        for number in (*before, *[signal.SIGHUP] * 3):
            signal.raise_signal(number)
        assert ended == ["SIGINT" if before else "SIGHUP"]
        signal.raise_signal(signal.SIGTERM)
    assert ended[1:] == ["at once"]


def test_a_process_that_can_open_no_more_files_is_not_ended_by_a_reload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = threading.Event()
    ended = list[int]()
    terminals = [os.open(os.devnull, os.O_RDONLY)]

    def opened(*_: object) -> int:
        if not terminals:
            raise OSError(errno.EMFILE, "Too many open files")
        return terminals.pop()

    with handled(lambda number, _: ended.append(number), signal.SIGTERM):
        monkeypatch.setattr("os.open", opened)
        with called_by_hangup(asked.set):
            signal.raise_signal(signal.SIGHUP)
            monkeypatch.undo()
            assert ended == []
            until(asked.is_set)
