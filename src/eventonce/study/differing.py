"""The difference between a drop and its original: in content, or only in the fields that each
publication writes anew, as far as the capture shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from eventonce.sources.inputs import Place
from eventonce.study import fields
from eventonce.study.arrivals import arrival, instant
from eventonce.study.fields import Sample
from eventonce.study.index import UINT64_MASK, lines_at
from eventonce.study.learning import MOST_SAMPLES
from eventonce.study.scratch import Scratch
from eventonce.types import Event

SAID_ROW: Final = {"line": "BIGINT", "said": "UBIGINT"}

Form = tuple[str, str]
"""Organisation and type."""


def compare(scratch: Scratch, paths: Sequence[Place]) -> None:
    """Fill the table `said`: the content, without the fields that a publication writes anew, of
    each drop whose bytes differ from its original's, and of that original."""
    scratch.table("said", SAID_ROW)
    scratch.run(
        """
        CREATE OR REPLACE TABLE unlike AS
        SELECT DISTINCT unnest([line, beside]) AS line FROM drops WHERE changed
        """
    )
    volatile = {form: fields.learn(some).volatile for form, some in _samples(scratch, paths)}
    scratch.load("said", SAID_ROW, _content_rows(scratch, paths, volatile))


def _samples(scratch: Scratch, paths: Sequence[Place]) -> Iterator[tuple[Form, Sequence[Sample]]]:
    """Yield events to learn from: drops with their originals, and others, to know rare values."""
    found: dict[Form, list[Sample]] = defaultdict(list)
    chosen = scratch.rows(
        """
        SELECT DISTINCT line FROM (
          (SELECT unnest([line, beside]) AS line FROM drops WHERE changed
           ORDER BY hash(beside), line LIMIT $most)
          UNION ALL
          (SELECT line FROM lines WHERE EXISTS (FROM unlike) ORDER BY hash(line) LIMIT $most)
        ) ORDER BY line
        """.replace("$most", str(MOST_SAMPLES // 2))
    )
    for line, event, arrived in _events(paths, (line for (line,) in chosen)):
        leaves = fields.leaves_of(bytes(event.detail_raw))
        # The volatile fields of Genesys are known.
        if not any(path.startswith("detail.eventBody") for path in leaves):
            found[event.org, event.type].append(Sample(line, hash(event.id), arrived, leaves))
    yield from found.items()


def _content_rows(
    scratch: Scratch, paths: Sequence[Place], volatile: Mapping[Form, frozenset[str]]
) -> Iterator[bytes]:
    unlike = (line for (line,) in scratch.rows("FROM unlike ORDER BY line"))
    for line, event, _ in _events(paths, unlike):
        leaves = fields.leaves_of(bytes(event.detail_raw))
        anew = volatile.get((event.org, event.type), frozenset())
        told = {path: it for path, it in leaves.items() if not path.startswith(fields.NOTICE_PATHS)}
        yield b"%d\t%d\n" % (line, fields.content_of(told, anew) & UINT64_MASK)


def _events(paths: Sequence[Place], wanted: Iterator[int]) -> Iterator[tuple[int, Event, int]]:
    """Yield line, event and arrival."""
    for line, raw in lines_at(paths, wanted):
        here = arrival(raw)
        if isinstance(here.event, Event):
            yield line, here.event, here.arrived or instant(here.event.time) or 0
