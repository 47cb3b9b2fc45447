"""The reload of rules in a running command at a signal: `kill -HUP`."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Final

import msgspec

from eventonce.cli.options import Settings
from eventonce.cli.signals import handled
from eventonce.config import DEFAULT_FILE, Config, read
from eventonce.consumer import Consumer
from eventonce.errors import ConfigError, EventonceError
from eventonce.sinks import imported

RELOADED_SETTINGS: Final = ("presets", "rules", "rule", "override", "secrets")
"""The settings that a reload changes."""


NEEDED_SETTINGS: Final = ("store", "name", "presets", "rules", "rule", "sink", "history", "privacy")
"""The settings that the file must still have at a reload."""


@contextmanager
def rules_reloaded(
    settings: Settings, consumer: Consumer, handler: str | None = None
) -> Iterator[None]:
    """Reload the rules of the file at SIGHUP; if the file has a fault, the old rules stay."""
    log = logging.getLogger("eventonce.settings")
    log.setLevel(logging.INFO)
    others = [name for name in Config.__struct_fields__ if name not in RELOADED_SETTINGS]
    in_use = settings.file
    # An explicit path: otherwise a missing file would be no fault, and would have no rules.
    path = settings.path or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)

    def reload() -> None:
        nonlocal in_use
        if handler is not None and consumer is imported(handler):
            log.warning("SIGHUP: %s has rules of its own, which need a restart", handler)
            return
        try:
            after = settings.also(config=path).file
            _check_whole(in_use, after, read(path, ask=False).document.values if path else {})
            rules = after.ruleset(consumer.name)
        except EventonceError as error:
            log.error("SIGHUP: the rules stay as they are: %s", error)  # noqa: TRY400  it says all
            return
        except Exception:
            # The thread must not end: the file may be right at the next signal.
            log.exception("SIGHUP: the rules stay as they are")
            return
        consumer.use(rules)
        log.info("SIGHUP: the rules in use are those of the file now, %d", len(rules.rules))
        gone = {one.name for one in in_use.all_rules()} - {one.name for one in rules.rules}
        if gone:
            log.warning("SIGHUP: rules that are gone: %s", ", ".join(sorted(gone)))
        in_use = after
        changed = ", ".join(_changed(settings.file, after, others))
        if changed:
            log.warning("SIGHUP: other settings have changed too, and need a restart: %s", changed)
        if after.history.store and after.secrets != settings.file.secrets:
            log.warning("SIGHUP: the history has ids by the secrets of before, until a restart")

    with called_by_hangup(reload):
        yield


def _check_whole(before: Config, after: Config, written: Container[str]) -> None:
    """Raise ConfigError if the file lost a setting that the running consumer has: it may have been
    read half written. With other keys, events that took effect would run again. `written` are the
    names in the file: a setting that is there may have its default value."""
    default = Config()
    lost = [
        f"`{name}`"
        for name in NEEDED_SETTINGS
        if getattr(before, name) != getattr(default, name) == getattr(after, name)
        # Rules may have moved into a file of their own.
        and not (name in written or (name == "rule" and "rules" in written))
    ]
    if before.secrets and before.secrets[0] not in after.secrets:
        lost.append("the secret in use, the first of `secrets`")
    if lost:
        raise ConfigError(
            f"the file no longer has {', '.join(lost)}; if that is meant, restart. A new secret "
            "goes before the one in use"
        )


def _changed(before: msgspec.Struct, after: msgspec.Struct, names: Iterable[str]) -> Iterator[str]:
    """Return the names of these settings that differ, as in the file; never their values, which may
    be secret."""
    written = dict(zip(before.__struct_fields__, before.__struct_encode_fields__, strict=True))
    for name in names:
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        if isinstance(old, msgspec.Struct) and type(old) is type(new):
            for one in _changed(old, new, old.__struct_fields__):
                yield f"{written[name]}.{one}"
        else:
            yield written[name]


@contextmanager
def called_by_hangup(call: Callable[[], None]) -> Iterator[None]:
    """Call this function at SIGHUP, in a thread of its own: a signal may come while the main thread
    holds a lock that the call needs. All signals during a call cause one more call.

    The SIGHUP of a terminal that is closed is for the handler of SIGTERM instead: otherwise the
    process would go on unseen, and every handler that prints would fail. Under `nohup` the process
    goes on.
    """
    if not hasattr(signal, "SIGHUP"):  # Windows
        yield
        return
    # Its `put` is reentrant; that of other queues, and `Event.set`, are not.
    asked = SimpleQueue[bool]()

    def one_by_one() -> None:
        while asked.get():
            while not asked.empty():
                if not asked.get():
                    return
            call()

    ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()
    ends = False

    def on(number: int, frame: FrameType | None) -> None:
        nonlocal ends
        if not ends_with_terminal or _has_terminal():
            asked.put(True)
        elif not ends:
            # Once: the shell and the system send a SIGHUP each.
            ends = True
            end = signal.getsignal(signal.SIGTERM)
            if callable(end):
                # With the number of SIGHUP: a SIGTERM after Ctrl-C would not wait for handlers.
                end(number, frame)
            else:
                signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=one_by_one, name="eventonce-reload", daemon=True).start()
    try:
        with handled(on, signal.SIGHUP):
            yield
    finally:
        asked.put(False)


def _has_terminal() -> bool:
    """Whether the process has a controlling terminal, which is gone once its window is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError as error:
        # A process that can open no more files may still have one.
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return True
