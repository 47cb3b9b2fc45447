"""The statements of queries.sql, for one schema."""

from __future__ import annotations

from pathlib import Path

import msgspec

from eventonce.stores.postgres.uri import SCHEMA, Address


class Queries(msgspec.Struct, frozen=True):
    """Each statement by its name; as bytes, for the driver takes no text that was composed."""

    claim: bytes
    settle: bytes
    show: bytes
    put_letters: bytes
    letters: bytes
    letter: bytes
    drop_letters: bytes
    sweep: bytes
    forget: bytes
    stats: bytes


def queries(address: Address) -> Queries:
    """The statements with this schema's name in them."""
    script = Path(__file__).with_name("queries.sql").read_text(encoding="utf-8")
    _, *parts = script.replace(f"{SCHEMA}.", f"{address.quoted}.").split("-- name: ")
    statements = {}
    for part in parts:
        name, *lines = part.splitlines()
        text = "\n".join(line for line in lines if not line.startswith("--"))
        statements[name] = text.strip().encode()
    return Queries(**statements)
