"""The cost of a month on each store, at the rate of a capture.

Units and bytes are the measured ones of docs/cost.md, which has the arithmetic and the sources of
the prices; a test compares both.
"""

from __future__ import annotations

from typing import Final

import msgspec

from eventonce.study.units import DAY

MONTH: Final = 30 * DAY
WRITE_UNITS: Final = 2
"""Write units of DynamoDB for an event that runs."""
COPY_UNITS: Final = (1, 1)
"""The most write and read units of DynamoDB for a copy; in large batches a read unit each."""
WRITE_PRICE: Final = 0.625
READ_PRICE: Final = 0.125
"""Dollars for a million units, on demand."""
STORED_PRICE: Final = 0.25
"""Dollars for a gigabyte and month of DynamoDB."""
DYNAMODB_BYTES: Final = 221
EXPIRED_KEPT: Final = 2 * DAY
"""Milliseconds for which DynamoDB may keep an expired item."""
REDIS_BYTES: Final = 102
POSTGRES_BYTES: Final = 195
SQLITE_BYTES: Final = 76

ASSUMPTIONS: Final = (
    "At the pace of the capture for 30 days; one attempt an event; prices of us-east-1 on demand, "
    "and bytes a record, as docs/cost.md has them. Records are those alive at a time, for as long "
    "as each rule remembers."
)


class Cost(msgspec.Struct, frozen=True):
    """The cost of one guard for a month."""

    events: int
    records: int
    """The records alive at a time."""
    dynamodb_writes: int
    dynamodb_reads: int
    dynamodb_dollars: float
    redis_bytes: int
    postgres_bytes: int
    sqlite_bytes: int

    @property
    def dollars(self) -> str:
        """The price of DynamoDB as text."""
        return f"${self.dynamodb_dollars:.2f}"

    def megabytes(self, space: str) -> tuple[str, ...]:
        """Return the sizes on Redis, PostgreSQL and SQLite as text; `space` precedes the unit."""
        sizes = (self.redis_bytes, self.postgres_bytes, self.sqlite_bytes)
        return tuple(f"{size / 1e6:.1f}{space}MB" for size in sizes)


def cost(
    *, span: int, runs: int, versions: int, copies: int, remembered: int, keys: int
) -> Cost | None:
    """Return the cost of these counts, made in `span` milliseconds; None if `span` is 0.

    `versions` are the runs of states; `remembered` is the sum of the durations for which the keys
    are remembered.
    """
    if span <= 0:
        return None
    months = MONTH / span
    records = round(remembered / span)
    writes = round((WRITE_UNITS * runs + COPY_UNITS[0] * copies) * months)
    reads = round((versions + COPY_UNITS[1] * copies) * months)
    kept = records + round(keys * EXPIRED_KEPT / span)
    dollars = (writes * WRITE_PRICE + reads * READ_PRICE) / 1e6
    return Cost(
        round((runs + copies) * months),
        records,
        writes,
        reads,
        round(dollars + kept * DYNAMODB_BYTES * STORED_PRICE / 1e9, 4),
        records * REDIS_BYTES,
        records * POSTGRES_BYTES,
        records * SQLITE_BYTES,
    )
