"""Actions: what operators do with many dead letters at once, each in a thread of the server.

An action goes on when its operator closes the browser, and is found again by its link. It leaves
an audit line when it begins and one when it has ended, however it did. An export leaves a file too,
until that is downloaded.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Final, Literal

from eventonce.audit import Audit
from eventonce.clock import wall_clock
from eventonce.dashboard.access import Person
from eventonce.dashboard.export_files import ExportFile, ExportRoom
from eventonce.dashboard.resources import Resources
from eventonce.errors import ConfigError, EventonceError
from eventonce.letters import bulk
from eventonce.letters.bulk import Progress
from eventonce.letters.selection import Selection
from eventonce.letters.sources import LetterSource

MOST_ACTIONS: Final = 2
"""Actions at the same time: each runs handlers or reads the store, which have their own work
beside."""

REMEMBERED: Final = 100
"""Actions that are found by their links; the audit has all of them."""

CLOSE_PATIENCE: Final = 25.0
"""Seconds that a close waits for the batches under way."""

VIA: Final = "dashboard"
"""The way of an action in its audit line."""

OUTLASTED: Final = "the dashboard ended before the batch under way did"

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
    """The id of one more action, which nobody guesses."""
    return secrets.token_hex(8)


class TooMany(Exception):
    """As many actions as may be are under way."""


class Action:
    """One action, and how far it has come."""

    def __init__(
        self,
        id_: str,
        kind: Kind,
        who: str,
        selection: Selection,
        limit: int,
        *,
        from_queue: bool,
        found: int = 0,
        file: ExportFile | None = None,
    ) -> None:
        self.id: Final = id_
        self.kind: Final = kind
        self.who: Final = who
        self.selection: Final = selection
        self.limit: Final = limit
        self.from_queue: Final = from_queue
        self.found: Final = found
        """How many its dry run had found."""
        self.file: Final = file
        """What an export writes; None for other kinds."""
        self.progress: Final = Progress()
        self.line: Final = threading.Lock()
        """Acquired by whoever writes the last audit line, the action or the end of the server, and
        never released: the other one writes none."""
        self.began: Final = wall_clock()
        self.ended = 0
        self.error = ""

    @property
    def state(self) -> State:
        """Its state in a word."""
        if not self.ended:
            return "stopping" if self.progress.stop.is_set() else "running"
        if self.error:
            return "failed"
        return "stopped" if self.progress.stopped else "finished"


class Actions:
    """The actions of one dashboard."""

    def __init__(self, resources: Resources) -> None:
        self.since: Final = wall_clock()
        """The moment before the first of them."""
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
        selection: Selection,
        limit: int,
        *,
        from_queue: bool,
        found: int = 0,
        id_: str = "",
    ) -> Action:
        """Begin one; `TooMany` if that is not possible now. `found` is what its dry run had found,
        and `id_` the id that its form has: a form that is sent twice, as by a double click, begins
        one action."""
        # A place of the audit that cannot be written is an error before anything is done.
        audit = Audit(self._resources.audit)
        id_ = id_ or new_id()
        file = ExportFile(self._room) if kind == "export" else None
        action = Action(
            id_, kind, person.name, selection, limit, from_queue=from_queue, found=found, file=file
        )
        thread = threading.Thread(
            target=self._run, args=(action, audit), name=f"eventonce-{kind}", daemon=True
        )
        with self._lock:
            if id_ in self._all:
                return self._all[id_]
            if self._closed or len(self._threads) >= MOST_ACTIONS:
                raise TooMany
            # First: where no thread can be started, nothing was begun.
            thread.start()
            self._all[action.id] = action
            while len(self._all) > REMEMBERED:
                ended = next(one for one in self._all.values() if one.ended)
                del self._all[ended.id]
                if ended.file is not None:
                    ended.file.remove()
            self._threads[action.id] = thread
        return action

    def find(self, id_: str) -> Action | None:
        """The action of this id, if it is remembered."""
        return self._all.get(id_)

    def latest(self) -> list[Action]:
        """All that are remembered, the latest first."""
        return list(self._all.values())[::-1]

    def close(self) -> None:
        """Stop what is under way after its batch, wait for it a while, and delete all files. An
        action whose batch outlasts that has its audit line now: nobody may be there to write it
        later."""
        end = monotonic() + CLOSE_PATIENCE
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
                    via=VIA,
                    selection=self._scope(action),
                    counts=action.progress.counts,
                    ended=OUTLASTED,
                )
        for action in self.latest():
            if action.file is not None:
                action.file.remove()

    @contextmanager
    def downloading(
        self, file: ExportFile, action: Action, person: Person, audit: Audit
    ) -> Iterator[Progress]:
        """The file of this action while somebody downloads it, and the audit line about that. It is
        deleted then, unless `stopped` of the progress says that not all of it was sent."""
        progress = Progress()
        scope = self._scope(action)
        with (
            bulk.audited(audit, "download", scope, progress, who=person.name, via=VIA),
            file.held(),
        ):
            yield progress
            if not progress.stopped:
                progress.add(["downloaded"] * action.progress.counts["exported"])
                file.taken_by = person.name
                file.remove()

    def _scope(self, action: Action) -> str:
        source = self._resources.source(from_queue=action.from_queue)
        return action.selection.scope(source=source, limit=action.limit)

    def _run(self, action: Action, audit: Audit) -> None:
        to_change = action.kind != "export"
        try:
            with (
                bulk.audited(
                    audit,
                    action.kind,
                    self._scope(action),
                    action.progress,
                    who=action.who,
                    via=VIA,
                    id_=action.id,
                    unwritten=partial(action.line.acquire, blocking=False),
                ),
                self._resources.place(
                    action.selection, from_queue=action.from_queue, to_change=to_change
                ) as place,
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
        # Whoever closes waits for this thread.
        if action.file is not None and action.file.there and not closed:
            action.file.expire()

    def _work(self, action: Action, place: LetterSource) -> None:
        progress, runners = action.progress, self._resources.runners
        batches = bulk.selected(place, action.selection, progress, action.limit)
        if action.kind == "drop":
            bulk.drop(place, batches, progress)
        elif action.file is not None:
            for lines in bulk.export(batches, progress):
                action.file.write(lines)
        elif runners is not None:
            bulk.redrive(place, runners, batches, progress)
        else:
            raise ConfigError(NO_RUNNERS)
