"""Actions of operators on many dead letters at once, each in a thread of the server.

An action continues when its operator closes the browser, and has a link. It writes an audit line
when it begins and one when it ends, also after a failure. An export has a file, until the file is
downloaded.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final, Literal

from eventonce.audit import Audit
from eventonce.clock import wall_clock
from eventonce.dashboard.access import Person
from eventonce.dashboard.export_files import ExportFile, ExportRoom
from eventonce.dashboard.letter_query import LetterQuery
from eventonce.dashboard.resources import Resources
from eventonce.errors import ConfigError, EventonceError
from eventonce.letters import bulk
from eventonce.letters.bulk import Progress
from eventonce.letters.sources import LetterSource

MOST_ACTIONS: Final = 2
"""The most actions at the same time: each runs handlers or reads the store, which have other work,
too."""

MOST_REMEMBERED: Final = 100
"""The most actions that are found by their links; the audit has all of them."""

CLOSE_WAIT: Final = 25.0
"""Seconds that `close` waits for the batches that still run."""

AUDIT_VIA: Final = "dashboard"
"""The value of `via` in audit lines."""

CUT_SHORT: Final = "the dashboard ended before the batch under way did"

Kind = Literal["redrive", "drop", "export"]
State = Literal["running", "stopping", "finished", "stopped", "failed"]

TOO_MANY: Final = (
    f"{MOST_ACTIONS} actions are under way already: wait until one has ended, or stop it."
)

NO_RUNNERS: Final = (
    "Nothing here can run them: write a [[sink]] table into eventonce.toml, or name a handler with "
    "--handler MODULE:NAME, and start the dashboard again."
)

log = logging.getLogger("eventonce.dashboard")


def new_id() -> str:
    """Return a new id of an action, which nobody can guess."""
    return secrets.token_hex(8)


class TooMany(Exception):
    """The largest number of actions runs already."""


@dataclass(eq=False)
class Action:
    """One action, and its progress."""

    id: str
    kind: Kind
    who: str
    chosen: LetterQuery
    limit: int
    found: int
    """The number of dead letters that the dry run found."""
    file: ExportFile | None
    """The file that an export writes; None for other kinds."""
    progress: Progress = field(default_factory=Progress)
    line: threading.Lock = field(default_factory=threading.Lock)
    """Acquired by the thread that writes the last audit line (of the action, or of the end of the
    server), and never released, so that there is only one such line."""
    began: int = field(default_factory=wall_clock)
    ended: int = 0
    error: str = ""

    @property
    def scope(self) -> str:
        """The selection as audit lines have it."""
        return self.chosen.scope(self.limit)

    @property
    def state(self) -> State:
        """The state of the action, as one word."""
        if not self.ended:
            return "stopping" if self.progress.stop.is_set() else "running"
        if self.error:
            return "failed"
        return "stopped" if self.progress.stopped else "finished"


class Actions:
    """The actions of one dashboard."""

    def __init__(self, resources: Resources) -> None:
        self.since: Final = wall_clock()
        """The start of the dashboard, before the first action."""
        self._resources = resources
        self._lock = threading.Lock()
        self._room = ExportRoom()
        self._all: dict[str, Action] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._closed = False

    def start(
        self,
        kind: Kind,
        person: Person,
        chosen: LetterQuery,
        limit: int,
        *,
        found: int = 0,
        id_: str = "",
    ) -> Action:
        """Start an action; `TooMany` if too many run. `found` is the number that the dry run found,
        and `id_` is the id in its form: a form that is sent twice, for example by a double click,
        starts one action."""
        # First, so that an audit file that cannot be written prevents the action.
        audit = Audit(self._resources.audit)
        id_ = id_ or new_id()
        file = ExportFile(self._room) if kind == "export" else None
        action = Action(id_, kind, person.name, chosen, limit, found, file)
        thread = threading.Thread(
            target=self._run, args=(action, audit), name=f"eventonce-{kind}", daemon=True
        )
        with self._lock:
            if id_ in self._all:
                return self._all[id_]
            if self._closed or len(self._threads) >= MOST_ACTIONS:
                raise TooMany
            # First: if no thread can be started, the action is not listed.
            thread.start()
            self._all[action.id] = action
            while len(self._all) > MOST_REMEMBERED:
                ended = next(one for one in self._all.values() if one.ended)
                del self._all[ended.id]
                if ended.file is not None:
                    ended.file.remove()
            self._threads[action.id] = thread
        return action

    def find(self, id_: str) -> Action | None:
        """Return the action with this id, if it is remembered."""
        return self._all.get(id_)

    def latest(self) -> list[Action]:
        """Return all remembered actions, the latest first."""
        return list(self._all.values())[::-1]

    def close(self) -> None:
        """Stop all actions after their batches, wait for them for a limited time, and delete all
        files. For an action that takes longer, the last audit line is written here, because the
        process may end before its thread does."""
        end = monotonic() + CLOSE_WAIT
        with self._lock:
            self._closed = True
            threads = list(self._threads.values())
            for id_ in self._threads:
                self._all[id_].progress.stop.set()
        for thread in threads:
            thread.join(max(0.0, end - monotonic()))
        with self._lock:
            outlasting = [self._all[id_] for id_ in self._threads]
        for action in outlasting:
            if action.line.acquire(blocking=False):
                Audit(self._resources.audit).record(
                    action.kind,
                    id=action.id,
                    who=action.who,
                    via=AUDIT_VIA,
                    selection=action.scope,
                    counts=action.progress.counts,
                    ended=CUT_SHORT,
                )
        for action in self.latest():
            if action.file is not None:
                action.file.remove()

    @contextmanager
    def downloading(
        self, file: ExportFile, action: Action, person: Person, audit: Audit
    ) -> Iterator[Progress]:
        """Keep the file of this action during a download, and write audit lines about it. The file
        is deleted at the end, unless `stopped` of the progress says that it was not sent whole."""
        progress = Progress()
        with (
            bulk.audited(audit, "download", action.scope, progress, who=person.name, via=AUDIT_VIA),
            file.held(),
        ):
            yield progress
            if not progress.stopped:
                progress.add(["downloaded"] * action.progress.counts["exported"])
                file.taken_by = person.name
                file.remove()

    def _run(self, action: Action, audit: Audit) -> None:
        try:
            with (
                bulk.audited(
                    audit,
                    action.kind,
                    action.scope,
                    action.progress,
                    who=action.who,
                    via=AUDIT_VIA,
                    id_=action.id,
                    unwritten=partial(action.line.acquire, blocking=False),
                ),
                action.chosen.place(to_change=action.kind != "export") as place,
            ):
                self._work(action, place)
        except EventonceError as error:
            action.error = str(error)
        except BaseException as error:
            log.exception("%s failed", action.kind)
            action.error = f"{type(error).__name__}; the log of the dashboard says more"
        finally:
            action.ended = wall_clock()
            with self._lock:
                del self._threads[action.id]
                closed = self._closed
        # `close` waits for this thread, and deletes the file itself.
        if action.file is not None and action.file.there and not closed:
            action.file.expire()

    def _work(self, action: Action, place: LetterSource) -> None:
        progress, runners = action.progress, self._resources.runners
        batches = bulk.selected(place, action.chosen.selection, progress, action.limit)
        if action.kind == "drop":
            bulk.drop(place, batches, progress)
        elif action.file is not None:
            for lines in bulk.export(batches, progress):
                action.file.write(lines)
        elif runners is not None:
            bulk.redrive(place, runners, batches, progress)
        else:
            raise ConfigError(NO_RUNNERS)
