"""The scripts: the law in Lua, as the files beside this one have it."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

from eventonce.core import ledger


class Script(NamedTuple):
    """A script, and the name by which a server that has it knows it."""

    text: bytes
    sha: bytes


def _source(name: str) -> str:
    return Path(__file__).with_name(f"{name}.lua").read_text(encoding="utf-8")


def _script(*sources: str) -> Script:
    text = "".join(sources).encode()
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


_RECORDS: Final = (
    f"local KEPT_DIGESTS, PATIENCE, UNSETTLED, LONGEST_LEASE = "
    f"{ledger.KEPT_DIGESTS}, {ledger.PATIENCE}, {ledger.UNSETTLED}, {ledger.LONGEST_LEASE}\n"
    + _source("records")
)

_EVEN_IF_FULL: Final = "redis.pcall('GETEX', KEYS[1])\n"
"""A server at its maxmemory refuses a script's first write, and none after it: it must not stop in
the middle. GETEX counts as a write, changes nothing, and is never refused, so that what follows it
always fits; `#!lua flags=allow-oom` says the same, but not to Redis 6.2. Not for claims: a server
that is full grants no new runs, and those that it granted can be settled. A user who may not call
it is let through as far as the memory goes."""

CLAIM: Final = _script(_RECORDS, _source("judge"), _source("claim"))
SETTLE: Final = _script(_EVEN_IF_FULL, _RECORDS, _source("settle"))
SHOW: Final = _script(_RECORDS, _source("show"))
PUT_LETTERS: Final = _script(_source("put_letters"))
DROP_LETTERS: Final = _script(_source("drop_letters"))
COUNT: Final = _script(_source("count"))
