"""The check and the statistics of Redis servers, for `eventonce store check` and `stats`; Redis
needs no schema."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from redis.exceptions import NoPermissionError, RedisClusterException, RedisError

from eventonce.clock import wall_clock
from eventonce.core.ports import Finding, Store, StoreAdmin, judged
from eventonce.errors import EventonceError
from eventonce.stores.probe import new_trial_key, write_trial
from eventonce.stores.redis.codec import COUNT
from eventonce.stores.redis.connections import NO_WAIT, Command, Connections, Reply, execute
from eventonce.types import Letter

OLDEST_SERVER: Final = (6, 2)
"""The first version that sets a value and its expiry in one command."""

KEYS_A_STEP: Final = 2_000
"""Keys checked in one step of a count: under a millisecond, in which other clients wait."""

SERVER_ERRORS: Final = (RedisError, RedisClusterException)


def check(
    store: Store,
    admin: StoreAdmin,
    nodes: Callable[[], Sequence[Connections]],
    wait_replicas: int,
) -> list[Finding]:
    """Try the store, and check the settings of its servers."""
    tried = _try_out(store, admin)
    if not tried.fine:
        return [tried]
    try:
        # Servers of a cluster with the same findings are reported once.
        looks = [found for node in nodes() for found in _settings(node, wait_replicas)]
        return list(dict.fromkeys([tried, *looks]))
    except SERVER_ERRORS as error:
        return [tried, Finding("its settings can be read", str(error))]


def count_records(node: Connections, pattern: bytes) -> int:
    """Return the number of records on one server, counted in steps."""
    cursor, records = b"0", 0
    while True:
        words = (b"EVALSHA", COUNT.sha, b"0", cursor, pattern, b"%d" % KEYS_A_STEP)
        cursor, found = _value(node, Command(words, script=COUNT.text))
        records += int(found)
        if cursor == b"0":
            return records


def _value(node: Connections, command: Command) -> Reply:
    (reply,) = execute(node, [command], NO_WAIT)
    if isinstance(reply, Exception):
        raise reply
    return reply


def _try_out(store: Store, admin: StoreAdmin) -> Finding:
    """Use each operation of the store once, on a key and a dead letter that are then deleted."""
    what = "it answers, and this user has all permissions that are needed"
    key, name = new_trial_key(), f"check-{secrets.token_hex(8)}"
    try:
        write_trial(store, key)
        admin.show(key)
        # Several records are read by another command than one.
        admin.clear_results([key, key])
        admin.forget([key])
        letter = Letter(name, name, "dead", "check", "", key, b"{}", wall_clock())
        admin.put_letters([letter])
        next(iter(admin.letters(name)), None)
        admin.drop_letters([name])
    except EventonceError as error:
        return Finding(what, str(error))
    return Finding(what)


def _settings(node: Connections, wait_replicas: int) -> Iterator[Finding]:
    """Yield findings about the settings of this server."""
    try:
        told = _value(node, Command((b"INFO",)))
    except NoPermissionError:
        yield Finding("its settings are not visible to this user (INFO)", unchecked=True)
        return
    info = dict(line.split(":", 1) for line in told.decode().splitlines() if ":" in line)
    yield _version(info)
    replicas = int(info.get("connected_slaves", 0))
    if wait_replicas:
        yield judged(
            replicas >= wait_replicas,
            f"it has {replicas} replicas, and {wait_replicas} are waited for",
            "check the replicas, or lower wait_replicas: until then no write is confirmed",
        )
    policy = info.get("maxmemory_policy", "")
    limit = int(info.get("maxmemory", 0))
    yield judged(
        not limit or policy == "noeviction",
        f"its maxmemory is {limit:,}, its policy {policy}" if limit else "it has no maxmemory",
        "set maxmemory-policy noeviction: now Redis may evict a record before it expires, and "
        "its event runs again",
    )
    yield judged(
        replicas > 0 or info.get("aof_enabled") == "1",
        "its data outlives a restart",
        "set appendonly yes, or give it a replica: now the events since its last snapshot run "
        "again after a restart",
    )


def _version(info: Mapping[str, str]) -> Finding:
    spoken = info.get("redis_version", "0.0")
    name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {spoken}"
    new_enough = tuple(int(part) for part in spoken.split(".")[:2]) >= OLDEST_SERVER
    upgrade = "upgrade it to Redis 6.2 or newer, or Valkey"
    return judged(new_enough, f"the server is {name}", upgrade)
