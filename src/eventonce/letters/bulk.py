"""Actions on many dead letters: run again, drop, export, reseal. An action has a limit, counts its
progress, and can be stopped between two batches."""

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
from eventonce.aws.dlq import FoundLetter
from eventonce.core.sealed import key_of_letter
from eventonce.errors import EventonceError
from eventonce.letters.runners import Runners, by_consumer, foreseen
from eventonce.letters.selection import Selection
from eventonce.letters.sources import LetterSource
from eventonce.privacy import SealedStore
from eventonce.sinks.json_lines import line_of

RUN_TOGETHER: Final = 20
"""Dead letters that run as one batch: a lease is held, and a stop waits, until the batch ends."""

SEALED: Final = "sealed"
"""The name under which dead letters that could not be opened are counted."""

Batches = Iterable[list[FoundLetter]]


class Progress:
    """The progress of an action, and the way to stop it; thread-safe."""

    def __init__(self, told: Callable[[Progress], None] = lambda _: None) -> None:
        """`told` is called after every batch."""
        self.counts: Counter[str] = Counter()
        """The dead letters by how the action ended: a status, or a word such as `dropped`."""
        self.stop: Final = threading.Event()
        """The event to set to stop the action after the batch in progress."""
        self.stopped = False
        """Whether the action was stopped before its end."""
        self.missed: list[str] = []
        """The ids of the selection that no dead letter begins with, once all have been read."""
        self.unfinished = ""
        """The reason why the action did not finish; empty if it did."""
        self.closed = 0
        """The number of dead letters that cannot be opened, and that the selection may mean."""
        self._told = told

    @property
    def done(self) -> int:
        """The number of dead letters that the action has dealt with."""
        return self.counts.total()

    def add(self, names: Iterable[str]) -> None:
        """Count these endings."""
        # A new counter each time: another thread must not read a counter that is half changed.
        self.counts = self.counts + Counter(names)
        self._told(self)


def selected(
    place: LetterSource,
    selection: Selection,
    progress: Progress,
    limit: int | None = None,
    *,
    ordered: bool = False,
) -> Iterator[list[FoundLetter]]:
    """Yield at most `limit` of the selected dead letters, in small batches, until a stop."""
    missed = set(selection.ids)

    def found() -> Iterator[FoundLetter]:
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


def batched(letters: Iterable[FoundLetter], progress: Progress) -> Iterator[list[FoundLetter]]:
    """Yield these in small batches, until a stop."""
    rest = iter(letters)
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
    """Write the two audit lines of this action: one at its beginning, and one at its end if
    `unwritten()` is true then. `scope` is the selection in words."""
    record = partial(
        audit.record, action, id=id_ or token_hex(8), who=who, via=via, selection=scope
    )
    record(counts={}, ended=BEGUN)
    ended = ""
    try:
        yield
    except (GeneratorExit, CancelledError):
        # The reader of the export closed its connection.
        progress.stopped = True
        raise
    except BaseException as error:
        # The text of any other exception may have content of an event.
        ended = str(error) if isinstance(error, EventonceError) else type(error).__name__
        raise
    finally:
        done = f"not finished: {progress.unfinished}" if progress.unfinished else "finished"
        ended = ended or ("stopped" if progress.stopped else done)
        if unwritten():
            record(counts=progress.counts, ended=ended)


def redrive(place: LetterSource, runners: Runners, batches: Batches, progress: Progress) -> None:
    """Run dead letters again, and drop the settled ones."""
    for batch in batches:
        for consumer, some in by_consumer(batch).items():
            outcomes = place.run_again(runners.of(consumer), some)
            progress.add(outcome.status for outcome in outcomes)


def drop(place: LetterSource, batches: Batches, progress: Progress) -> None:
    """Delete dead letters for good."""
    for batch in batches:
        progress.add(["dropped"] * place.drop(batch))


def export(batches: Batches, progress: Progress) -> Iterator[bytes]:
    """Yield the events of dead letters that can be opened, as lines of JSON; nothing is changed."""
    for batch in batches:
        opened = [one.letter for one in batch if not key_of_letter(one.letter)]
        yield b"".join(line_of(letter.event) for letter in opened)
        progress.add(["exported"] * len(opened) + [SEALED] * (len(batch) - len(opened)))


def reseal(store: SealedStore, batches: Batches, progress: Progress) -> None:
    """Seal dead letters with the key in use, unless they are already."""
    for batch in batches:
        letters = [one.letter for one in batch]
        done = store.reseal(letters)
        closed = sum(bool(key_of_letter(letter)) for letter in letters)
        progress.add(
            ["resealed"] * done + [SEALED] * closed + ["unchanged"] * (len(batch) - done - closed)
        )


class Foretold(msgspec.Struct, frozen=True):
    """The result that a redrive of one dead letter would have."""

    found: FoundLetter
    would: str
    """`run`, or the verdict for which it would not run."""
    why: str


def foretell(runners: Runners, batches: Batches) -> Iterator[Foretold]:
    """Yield the result that a redrive of each would have; nothing is changed."""
    for batch in batches:
        for one in batch:
            would, why = foreseen(runners.of(one.letter.consumer), one)
            yield Foretold(one, would, why)
