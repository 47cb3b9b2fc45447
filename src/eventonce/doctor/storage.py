"""The findings about stored data: the findings of `store check`, the store's clock, the sealing
keys, and the history."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from eventonce.clock import wall_clock
from eventonce.core.masking import masked
from eventonce.core.ports import Finding, StoreSchema, judged, offers
from eventonce.core.sealed import key_of_letter
from eventonce.doctor.checks import DELETION_DELAY, ahead_of, clock_finding
from eventonce.doctor.facts import HistoryFacts
from eventonce.errors import EventonceError
from eventonce.history import History, connection
from eventonce.history.sqlite import location_of
from eventonce.privacy import NOT_OPENED, Sealer, opened_letter
from eventonce.rules.instants import duration, duration_text
from eventonce.stores import adapter_of, open_schema, open_store
from eventonce.stores.probe import write_finding
from eventonce.stores.sqlite.errors import open_to_all, unwritable
from eventonce.types import Claim, Letter

PROBE_LEASE: Final = 60_000
"""Milliseconds of the trial's lease; the trial expires then if this process dies."""

SERVER_CLOCKS: Final = ("redis", "postgres")
"""The extras of stores whose server decides by its own clock. SQLite uses the clock of this
machine, and the check of a DynamoDB table compares the clocks itself."""

MOST_LETTERS: Final = 1_000
"""The most dead letters that are read, the oldest first: they have the oldest keys."""

NO_MEMORY: Final = "use a store that outlives the process, such as sqlite:///eventonce.db"


def store_findings(
    uri: str, name: str = "", keep: int | None = None, keys: Sequence[str] = ()
) -> list[Finding]:
    """Return every finding about the store of this URI, and about the dead letters of the consumer
    `name`: kept for `keep` milliseconds, and sealed with these keys. Nothing is created."""
    found: list[Finding] = []
    try:
        with closing(open_schema(uri)) as schema:
            if not offers(schema, StoreSchema):
                return [Finding("the store is in memory, and every restart empties it", NO_MEMORY)]
            found += schema.check()
        # A store with a fault is not written to: the fault already says why that may fail.
        if all(it.fine for it in found):
            found.append(write_finding(uri))
        if all(it.fine for it in found) and adapter_of(uri).extra in SERVER_CLOCKS:
            found.append(_clock(uri))
        if all(it.fine for it in found):
            found += _letters(uri, name, keep, keys)
    except EventonceError as error:
        found.append(Finding(f"the store {masked(uri)} cannot be used", str(error)))
    return found


def key_findings(keys: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding about each sealing key: whether it seals, and opens again."""
    about = b"a trial of eventonce doctor"
    for number, text in enumerate(keys):
        name = f"the sealing key {number + 1}"
        try:
            sealer = Sealer([text])
            name = f"the sealing key {sealer.keys[0].name}"
            # A second sealer: the first still has the data key in memory.
            Sealer([text]).open(sealer.seal(about, about), about)
        except EventonceError as error:
            yield Finding(f"{name} cannot be used", str(error))
        else:
            yield Finding(f"{name} seals and opens")


def key_file_findings(paths: Iterable[Path]) -> Iterator[Finding]:
    """Yield a finding about each file with a sealing key: whether everybody may read it. On a
    read-only volume, such as of a container, the mode cannot be changed: it is not a fault."""
    for path in paths:
        closed = not open_to_all(path.resolve())
        said = f"{'not ' * closed}everybody on this machine may read the key file {path}"
        if closed or not os.statvfs(path).f_flag & os.ST_RDONLY:
            yield judged(closed, said, f"chmod o-rwx {path}, or mount the secret with mode 0400")
        else:
            yield Finding(f"{said}, on a read-only volume: let nobody else use it", unchecked=True)


def history_facts(uri: str, keep: float | str, most: int, secrets: Sequence[bytes]) -> HistoryFacts:
    """Return the facts of the history of this URI, as this user sees it; nothing is changed."""
    facts = HistoryFacts(masked(uri), duration(keep), most)
    try:
        connection.check(uri)
        if not connection.exists(uri):
            return replace(facts, begun=False, refused=unwritable(location_of(uri).path))
        with History(uri, look=True, secrets=secrets) as history:
            begin = history.begin()
            facts = replace(
                facts,
                age=wall_clock() - begin if begin is not None else 0,
                span=history.span(),
                # No decision has this name, so all hidden decisions are counted.
                hidden=history.hidden("conversation", "-"),
            )
            try:
                history.try_to_write()
            except EventonceError as error:
                return replace(facts, refused=str(error))
    except EventonceError as error:
        return replace(facts, fault=str(error))
    return facts


def _letters(uri: str, name: str, keep: int | None, keys: Sequence[str]) -> Iterator[Finding]:
    """Yield findings about the oldest dead letters: their age, and for each sealing key whether one
    of them can be opened."""
    oldest: Letter | None = None
    sealed: dict[str, Letter] = {}
    try:
        sealer = Sealer(keys)
        with closing(open_store(uri)) as store:
            for letter in islice(store.letters(name), MOST_LETTERS):
                oldest = oldest or letter
                sealed.setdefault(key_of_letter(letter), letter)
    except EventonceError as error:
        yield Finding(f"the dead letters of {name}: {error}", unchecked=True)
        return
    if keep is not None:
        yield _age(oldest, name, keep)
    for key in sorted(sealed.keys() - {""}):
        opened = opened_letter(sealed[key], sealer)
        shut = key_of_letter(opened) != ""
        yield judged(
            not shut,
            f"a dead letter of {name} under the key {key} {'cannot' if shut else 'can'} be opened",
            opened.reason.rpartition(NOT_OPENED)[2],
        )


def _age(oldest: Letter | None, name: str, keep: int) -> Finding:
    late = oldest is not None and oldest.at < wall_clock() - keep - DELETION_DELAY
    return judged(
        not late,
        f"{'a' if late else 'no'} dead letter of {name} is older than {duration_text(keep)}",
        "run eventonce sweep every hour: its consumer gets no events, or has no keep_letters",
    )


def _clock(uri: str) -> Finding:
    """Claim a random key and read its record: the end of the lease shows the store's time."""
    claim = Claim(secrets.token_bytes(16), 1, PROBE_LEASE, PROBE_LEASE, 1)
    with closing(open_store(uri)) as store:
        before = wall_clock()
        store.claim([claim])
        after = wall_clock()
        record = store.show(claim.key)
        store.forget([claim.key])
    if record is None:
        return Finding("the store's clock: the record of a trial was not found", unchecked=True)
    return clock_finding("the store", ahead_of(record.held_until - PROBE_LEASE, before, after))
