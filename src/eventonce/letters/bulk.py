"""Actions on many dead letters: run again, drop, export; bounded, watched, and stopped between two
batches."""

from __future__ import annotations

import threading
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from secrets import token_hex
from typing import Final

import msgspec

from eventonce.audit import BEGUN, Audit
from eventonce.aws.dlq import Held
from eventonce.core.sealed import key_of_letter
from eventonce.errors import EventonceError
from eventonce.letters.runners import Runners, by_consumer, foreseen
from eventonce.letters.selection import Selection
from eventonce.letters.sources import LetterSource
from eventonce.privacy import SealedStore
from eventonce.sinks.json_lines import line_of

RUN_TOGETHER: Final = 20
"""Dead letters that run as one batch: a lease waits for the others, and so does a stop."""

SEALED: Final = "sealed"
"""How an action on a dead letter ends that could not be opened."""

Batches = Iterable[list[Held]]


class Progress:
    """How far an action has come, and the way to stop it; other threads may use both."""

    def __init__(self, told: Callable[[Progress], None] = lambda _: None) -> None:
        """`told` is called after every batch."""
        self.counts: Counter[str] = Counter()
        """How many ended how: by status, or `dropped` and `exported`."""
        self.stop: Final = threading.Event()
        """Set it to stop the action after the batch under way."""
        self.stopped = False
        """Whether it was stopped before its end."""
        self.missed: list[str] = []
        """The ids of the selection that no dead letter begins with, once all were looked at."""
        self.unfinished = ""
        """Why it did not do all that it was asked for; empty where it did."""
        self.closed = 0
        """Sealed ones that nobody here can open, and that the selection may have meant."""
        self._told = told

    @property
    def done(self) -> int:
        """How many it has dealt with."""
        return self.counts.total()

    def add(self, names: Iterable[str]) -> None:
        """Note how some ended."""
        # A new one each time: a reader must not meet it half changed.
        self.counts = self.counts + Counter(names)
        self._told(self)


def selected(
    place: LetterSource,
    selection: Selection,
    progress: Progress,
    limit: int | None = None,
    *,
    ordered: bool = False,
) -> Iterator[list[Held]]:
    """The selected dead letters in small batches, `limit` in all at most, until it is stopped."""
    missed = set(selection.ids)

    def found() -> Iterator[Held]:
        for some in place.read(ordered=ordered):
            for one in some:
                if missed:
                    missed.difference_update([it for it in missed if one.letter.id.startswith(it)])
                if selection.matches(one.letter):
                    yield one
                elif key_of_letter(one.letter) and selection.outside.matches(one.letter):
                    progress.closed += 1
        progress.missed = [it for it in selection.ids if it in missed]

    yield from batched(islice(found(), limit), progress)


def batched(held: Iterable[Held], progress: Progress) -> Iterator[list[Held]]:
    """These in small batches, until it is stopped."""
    rest = iter(held)
    while some := list(islice(rest, RUN_TOGETHER)):
        if progress.stop.is_set():
            progress.stopped = True
            return
        yield some


@contextmanager
def audited(
    audit: Audit,
    action: str,
    scope: str,
    progress: Progress,
    *,
    who: str,
    via: str,
    id_: str = "",
    unwritten: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Leave the audit lines of this action: that it begins, and how it ended, if that is
    `unwritten` then. `scope` is what it was asked for."""
    record = partial(
        audit.record, action, id=id_ or token_hex(8), who=who, via=via, selection=scope
    )
    record(counts={}, ended=BEGUN)
    ended = ""
    try:
        yield
    except (GeneratorExit, CancelledError):
        # Whoever took the events went away.
        progress.stopped = True
        raise
    except BaseException as error:
        # The text of any other may hold what an event holds.
        ended = str(error) if isinstance(error, EventonceError) else type(error).__name__
        raise
    finally:
        done = f"not finished: {progress.unfinished}" if progress.unfinished else "finished"
        ended = ended or ("stopped" if progress.stopped else done)
        if unwritten():
            record(counts=progress.counts, ended=ended)


def redrive(place: LetterSource, runners: Runners, batches: Batches, progress: Progress) -> None:
    """Run them again, and drop those that are settled."""
    for held in batches:
        for consumer, some in by_consumer(held).items():
            outcomes = place.run_again(runners.of(consumer), some)
            progress.add(outcome.status for outcome in outcomes)


def drop(place: LetterSource, batches: Batches, progress: Progress) -> None:
    """Delete them for good."""
    for held in batches:
        progress.add(["dropped"] * place.drop(held))


def export(batches: Batches, progress: Progress) -> Iterator[bytes]:
    """Their events as lines of JSON; the dead letters stay. A sealed one that nobody here can open
    is none."""
    for held in batches:
        opened = [one.letter for one in held if not key_of_letter(one.letter)]
        yield b"".join(line_of(letter.event) for letter in opened)
        progress.add(["exported"] * len(opened) + [SEALED] * (len(held) - len(opened)))


def reseal(store: SealedStore, batches: Batches, progress: Progress) -> None:
    """Seal them with the key in use; those that are need nothing."""
    for held in batches:
        letters = [one.letter for one in held]
        done = store.reseal(letters)
        closed = sum(bool(key_of_letter(letter)) for letter in letters)
        progress.add(
            ["resealed"] * done + [SEALED] * closed + ["unchanged"] * (len(held) - done - closed)
        )


class Foretold(msgspec.Struct, frozen=True):
    """What a redrive would do with one dead letter."""

    held: Held
    would: str
    """`run`, or the verdict that keeps it from running."""
    why: str


def foretell(runners: Runners, batches: Batches) -> Iterator[Foretold]:
    """What a redrive would do with each; nothing is changed."""
    for held in batches:
        for one in held:
            would, why = foreseen(runners.of(one.letter.consumer), one)
            yield Foretold(one, would, why)
