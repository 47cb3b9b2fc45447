"""`eventonce filter`: the events that are new, out of a stream."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.lines import Chunk, chunks
from eventonce.cli.options import (
    config_option,
    json_option,
    name_option,
    option,
    rules_option,
    ruleset,
    settings,
    store_option,
)
from eventonce.cli.output import standard_output, write_whole
from eventonce.cli.table import table
from eventonce.envelope import MAX_BYTES, read
from eventonce.errors import EnvelopeError, StoreError
from eventonce.ports import Store
from eventonce.reasons import reason
from eventonce.rules import Ruleset
from eventonce.runners import settle_patiently
from eventonce.stores import open_store
from eventonce.types import Claim, Settlement, Verdict

COPIES: Final = frozenset[str](("duplicate", "stale", "unchanged"))


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@rules_option
@store_option
@name_option
@config_option
@option("--rejects", type=click.File("ab"), help="Append lines that are no events, with why.")
@option("--max-bytes", default=MAX_BYTES, show_default=True, help="The longest event accepted.")
@json_option
def command(
    files: tuple[str, ...],
    rules: tuple[str, ...],
    store: str | None,
    name: str | None,
    config: Path | None,
    rejects: BinaryIO | None,
    max_bytes: int,
    *,
    as_json: bool,
) -> int:
    """Read JSON Lines from FILES, or from stdin, and write the events that are new to stdout.

    Copies are dropped, whichever transport id they came with. A summary goes to stderr. Lines are
    settled only after they were flushed, so a filter that is killed and started again on the same
    store loses nothing.
    """
    said, _ = settings(config)
    uri = store or said.store
    if not uri and not as_json:
        click.echo("eventonce: no --store: nothing is remembered after this run", err=True)
    opened = open_store(uri or "memory:")
    sieve = Sieve(opened, ruleset(config, rules, name), standard_output(), max_bytes=max_bytes)
    with click.progressbar(
        length=max(1, sum(Path(name).stat().st_size for name in files if name != "-")),
        label="filter",
        file=sys.stderr,
        hidden=not (files and sys.stderr and sys.stderr.isatty()),
    ) as bar:
        for chunk in chunks(files, max_bytes):
            for refused in sieve.sift(chunk.lines):
                _reject(chunk, refused, rejects, as_json=as_json)
            bar.update(sum(map(len, chunk.lines)) + len(chunk.lines))
    opened.close()
    click.echo(_summary(sieve.counts, as_json=as_json), err=True)
    return 0 if sieve.counts.keys() <= {"done", *COPIES} else FAILED


class Refused(NamedTuple):
    """A line that was neither passed on nor dropped as a copy."""

    at: int
    """The line's place among those given."""
    status: str
    reason: str


class Sieve:
    """Claims lines, writes the new ones, and settles them when they are flushed.

    Not the engine: where the effect is to write a line there is no handler to run, to renew for or
    to try again, and a filter is measured against a script that does nothing but parse.
    """

    def __init__(self, store: Any, rules: Ruleset, out: BinaryIO, *, max_bytes: int) -> None:
        self._store: Store = store
        self._rules = rules
        self._out = out
        self._max_bytes = max_bytes
        self.counts: Counter[str] = Counter()

    def sift(self, lines: Sequence[bytes]) -> Iterator[Refused]:
        """Pass on what is new; gives back what is neither new nor a copy."""
        nonce = random.getrandbits(52) | 1
        max_bytes, plan, also = self._max_bytes, self._rules.plan, self._rules.also
        asked: dict[bytes, tuple[Claim, int]] = {}
        for index, line in enumerate(lines):
            try:
                event = read(line, max_bytes=max_bytes)
                rule, claim = plan(event, nonce)
            except EnvelopeError as error:
                if line and not line.isspace():
                    yield self._refused(index, "invalid", str(error))
                continue
            before = asked.get(claim.key)
            if before is None:
                older = also(event, rule, nonce)
                known = self._known(older) if older else None
                if known is None:
                    asked[claim.key] = claim, index
                elif known.kind in COPIES:
                    self.counts[known.kind] += 1
                else:
                    yield self._refused(index, known.kind, reason(claim, known))
            elif before[0].order == claim.order and before[0].digest == claim.digest:
                self.counts["duplicate"] += 1
            else:
                # Another version of a subject: it is judged after the one before it is settled.
                yield from self._pass(asked.values(), lines)
                asked = {claim.key: (claim, index)}
        yield from self._pass(asked.values(), lines)

    def _known(self, older: Sequence[Claim]) -> Verdict | None:
        """What is known of the event under the key an older rule or secret gave it."""
        for verdict in self._store.claim(older):
            if isinstance(verdict.error, StoreError):
                raise verdict.error
            if verdict.kind != "run":
                return verdict
        return None

    def _pass(
        self, asked: Collection[tuple[Claim, int]], lines: Sequence[bytes]
    ) -> Iterator[Refused]:
        if not asked:
            return
        verdicts = self._store.claim([claim for claim, _ in asked])
        new: list[bytes] = []
        granted: list[Settlement] = []
        for (claim, index), verdict in zip(asked, verdicts, strict=True):
            if verdict.kind == "run":
                new.append(lines[index])
                granted.append(Settlement(claim, verdict.token, "complete"))
            elif verdict.kind in COPIES:
                self.counts[verdict.kind] += 1
            elif isinstance(verdict.error, StoreError):
                raise verdict.error
            else:
                yield self._refused(index, verdict.kind, reason(claim, verdict))
        if new:
            self._write(new, granted)

    def _write(self, new: Sequence[bytes], granted: Sequence[Settlement]) -> None:
        try:
            write_whole(self._out, b"\n".join(new) + b"\n")
            for kept in settle_patiently(self._store, granted):
                # Refused: the reader outlasted the lease, and another filter passed it on too.
                self.counts["done" if kept == "kept" else "fenced"] += 1
        except BaseException:
            # Nobody has seen them, or not all of them: the next run shall not wait for the lease.
            freed = [Settlement(one.claim, one.token, "release") for one in granted]
            with suppress(StoreError):
                self._store.settle(freed)
            raise

    def _refused(self, index: int, status: str, why: str) -> Refused:
        self.counts[status] += 1
        return Refused(index, status, why)


def _reject(chunk: Chunk, refused: Refused, rejects: BinaryIO | None, *, as_json: bool) -> None:
    place = f"{chunk.file}:{chunk.first + refused.at}"
    text = chunk.lines[refused.at].decode(errors="backslashreplace")
    entry = {"place": place, "status": refused.status, "reason": refused.reason, "event": text}
    if rejects is not None:
        rejects.write(msgspec.json.encode(entry) + b"\n")
        rejects.flush()
    elif as_json:
        click.echo(msgspec.json.encode(entry), err=True)
    else:
        # Nobody keeps it otherwise, so it is all said here.
        click.echo(f"{place}: {refused.status}: {refused.reason}\n  {text}", err=True)


def _summary(counts: Counter[str], *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(counts).decode()
    total = sum(counts.values())
    rows = [(status, count) for status, count in counts.most_common()]
    return f"{total} events, {counts['done']} new\n{table(rows, indent=2)}"
