"""What `eventonce store check` looks at in Redis; nothing need be made there, or upgraded."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Final

from redis.exceptions import NoPermissionError

from eventonce.clock import wall_clock
from eventonce.core.ports import Finding, Store, StoreAdmin
from eventonce.errors import EventonceError
from eventonce.stores.redis.calls import NO_WAIT, Call, Lines, exchange
from eventonce.types import Claim, Letter, Settlement

OLDEST: Final = (6, 2)
"""The first that sets a value and its instant of expiry in one command."""


def try_out(store: Store, shelf: StoreAdmin) -> Finding:
    """Do once what the store does, on a key and a letter of our own that are gone afterwards."""
    what = "it answers, and this user may do all that is needed"
    key, name = secrets.token_bytes(16), f"check-{secrets.token_hex(8)}"
    claim = Claim(key, 1, 1_000, 1_000, 1)
    try:
        (run,) = store.claim([claim])
        store.settle([Settlement(claim, run.token, "complete")])
        shelf.show(key)
        shelf.forget([key])
        letter = Letter(name, name, "dead", "check", "", key, b"{}", wall_clock())
        shelf.put_letters([letter])
        next(iter(shelf.letters(name)), None)
        shelf.drop_letters([name])
    except EventonceError as error:
        return Finding(what, fine=False, fix=str(error))
    return Finding(what, fine=True)


def look(lines: Lines, wait_replicas: int) -> Iterator[Finding]:
    """How this server is set up."""
    (said,) = exchange(lines, [Call((b"INFO",))], NO_WAIT)
    if isinstance(said, NoPermissionError):
        yield Finding("how it is set up is not shown to this user (INFO)", fine=True)
        return
    if isinstance(said, Exception):
        raise said
    info = dict(line.split(":", 1) for line in said.decode().splitlines() if ":" in line)
    yield _version(info)
    replicas = int(info.get("connected_slaves", 0))
    if wait_replicas:
        yield _finding(
            f"it has {replicas} replicas, and {wait_replicas} are waited for",
            fine=replicas >= wait_replicas,
            fix="look at the replicas, or lower wait_replicas: until then nothing is confirmed",
        )
    policy = info.get("maxmemory_policy", "")
    limit = int(info.get("maxmemory", 0))
    yield _finding(
        f"its maxmemory is {limit:,}, its policy {policy}" if limit else "it has no maxmemory",
        fine=not limit or policy == "noeviction",
        fix="set maxmemory-policy noeviction: now a record may be dropped before its time, and "
        "what it remembered runs again",
    )
    yield _finding(
        "what it holds outlives a restart",
        fine=replicas > 0 or info.get("aof_enabled") == "1",
        fix="set appendonly yes, or give it a replica: now what it remembered since its last "
        "snapshot runs again after a restart",
    )


def _version(info: Mapping[str, str]) -> Finding:
    spoken = info.get("redis_version", "0.0")
    name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {spoken}"
    new_enough = tuple(int(part) for part in spoken.split(".")[:2]) >= OLDEST
    return _finding(
        f"the server is {name}", fine=new_enough, fix="upgrade it to Redis 6.2 or newer, or Valkey"
    )


def _finding(what: str, *, fine: bool, fix: str) -> Finding:
    return Finding(what, fine=fine, fix="" if fine else fix)
