"""The table itself: created, migrated and checked, for the command line."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from eventonce.core.ports import Finding, judged
from eventonce.errors import EventonceError, StoreMismatch, StoreUnavailable
from eventonce.stores.dynamodb.codec import STAMP, Delete, Insert, Update, new_stamp
from eventonce.stores.dynamodb.letters import INDEX, INDEX_ATTRIBUTES, INDEX_GROUP, INDEX_ORDER
from eventonce.stores.dynamodb.table import Table

CREATION_TIMEOUT: Final = 600.0
"""The most seconds to create a table or an index; a table takes seconds, an index minutes."""
CREATION_POLL: Final = 1.0
"""Seconds between two checks of a table that is being created."""

CLOCK_SKEW: Final = 5_000
"""Milliseconds that this machine's clock may be off before the check reports it."""


def create(table: Table, *, dry_run: bool = False) -> list[str]:
    """Create the table, or what it lacks; return the steps that were done, or would be."""
    if _described(table) is not None:
        return migrate(table, dry_run=dry_run)
    key, name = table.layout.key, table.ref.table
    if not dry_run:
        table.call(
            "create_table",
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=_attributes(key, INDEX_GROUP, INDEX_ORDER),
            GlobalSecondaryIndexes=[_index()],
        )
        _wait(table, lambda found: found.get("TableStatus") == "ACTIVE")
        _expire(table)
    return [
        f"{_would(dry_run)}create {table.ref}: on demand, partition key {key} (string)",
        f"{_would(dry_run)}create the index {INDEX}, of dead letters",
        f"{_would(dry_run)}let it expire items by {table.layout.expiry}",
    ]


def migrate(table: Table, *, dry_run: bool = False) -> list[str]:
    """Add what the table lacks; return the steps that were done, or would be."""
    described = _described(table)
    if described is None:
        raise StoreMismatch(f"{table.ref} does not exist. Create it: {table.ref.command('create')}")
    wrong = _wrong_key(table, described)
    if wrong:
        raise StoreMismatch(f"{table.ref}: {wrong}, and a table's key cannot be changed")
    steps = []
    if _index_status(described) is None:
        steps.append(f"{_would(dry_run)}create the index {INDEX}, of dead letters")
        if not dry_run:
            table.call(
                "update_table",
                TableName=table.ref.table,
                AttributeDefinitions=_attributes(table.layout.key, INDEX_GROUP, INDEX_ORDER),
                GlobalSecondaryIndexUpdates=[{"Create": _index()}],
            )
            _wait(table, lambda found: _index_status(found) == "ACTIVE")
    if _expires_by(table) is None:
        steps.append(f"{_would(dry_run)}let it expire items by {table.layout.expiry}")
        if not dry_run:
            _expire(table)
    return steps


def check(table: Table) -> list[Finding]:
    """Check the table, its expiry, its index, our permissions and the clock. If the key is wrong,
    nothing else is checked: the table belongs to another application."""
    # An endpoint that cannot be reached, or refuses the credentials, raises an error instead.
    described = _described(table)
    if described is None:
        fix = f"Create it: {table.ref.command('create')}"
        return [Finding(f"{table.ref} does not exist", fix, missing=True)]
    wrong = _wrong_key(table, described)
    key = Finding(
        f"its key is {table.layout.key}, a string",
        wrong and f"{wrong}; name another table, or its attribute with key=",
    )
    if wrong:
        return [key]
    return [key, *_shape(table, described), *_permissions(table), _clock(table)]


def _shape(table: Table, described: dict[str, Any]) -> Iterator[Finding]:
    migrate_it = table.ref.command("migrate")
    expires_by = _expires_by(table)
    yield Finding(
        f"items expire by {table.layout.expiry}",
        ""
        if expires_by == table.layout.expiry
        else migrate_it
        if expires_by is None
        else f"they expire by {expires_by}: set expiry={expires_by}, or disable that TTL first",
    )
    status = _index_status(described)
    yield Finding(
        f"the index {INDEX} lists dead letters",
        "" if status == "ACTIVE" else migrate_it if status is None else "it is being created",
    )
    replicas = described.get("Replicas") or []
    strong = described.get("MultiRegionConsistency") == "STRONG"
    yield judged(
        not replicas or strong,
        "one region decides",
        "in a global table the last writer wins a conflict, so that two regions may both run "
        "one event: let all workers of a consumer use one region, or use strong consistency",
    )


def _permissions(table: Table) -> Iterator[Finding]:
    """Yield whether each operation of the store is allowed, tried on items deleted afterwards."""
    name = f"check:{secrets.token_hex(8)}"
    stamp = new_stamp()
    item = {table.layout.key: {"S": name}, STAMP: stamp}
    # Two items, because a lone one is written by PutItem; the first is refused, as it exists.
    twin = {table.layout.key: {"S": f"{name}:2"}, STAMP: stamp}
    change = Update(name, {STAMP: new_stamp()}, (), ((STAMP, stamp),))
    tries: tuple[tuple[str, Callable[[], Iterable[object]]], ...] = (
        ("PutItem", lambda: table.write([Insert(item)])),
        ("PartiQLInsert", lambda: table.write([Insert(item), Insert(twin)])),
        ("PartiQLUpdate", lambda: table.write([change])),
        ("BatchGetItem", lambda: table.read([name]).values()),
        ("PartiQLDelete", lambda: table.write([Delete(name), Delete(f"{name}:2")])),
    )
    for action, attempt in tries:
        fault = next((it for it in attempt() if isinstance(it, EventonceError)), None)
        yield Finding(f"dynamodb:{action} is allowed", str(fault or ""))


def _clock(table: Table) -> Finding:
    off = table.clock.offset
    return judged(
        abs(off) <= CLOCK_SKEW,
        "this machine's clock is right",
        f"it is {abs(off) / 1000:.0f} s {'behind' if off > 0 else 'ahead of'} DynamoDB's; the "
        f"store corrects it, but switch on time synchronisation",
    )


def _described(table: Table) -> dict[str, Any] | None:
    try:
        described: dict[str, Any] = table.call("describe_table", TableName=table.ref.table)["Table"]
    except StoreMismatch:
        return None
    return described


def _wrong_key(table: Table, described: dict[str, Any]) -> str:
    keys = {key["AttributeName"]: key["KeyType"] for key in described["KeySchema"]}
    types = {it["AttributeName"]: it["AttributeType"] for it in described["AttributeDefinitions"]}
    if keys != {table.layout.key: "HASH"}:
        return f"its key is {' and '.join(keys)}, not {table.layout.key} alone"
    if types[table.layout.key] != "S":
        return f"its key {table.layout.key} is of type {types[table.layout.key]}, not a string"
    return ""


def _index_status(described: dict[str, Any]) -> str | None:
    for index in described.get("GlobalSecondaryIndexes") or ():
        if index["IndexName"] == INDEX:
            return str(index.get("IndexStatus", "ACTIVE"))
    return None


def _expires_by(table: Table) -> str | None:
    answer = table.call("describe_time_to_live", TableName=table.ref.table)
    told = answer["TimeToLiveDescription"]
    if told.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        return None
    return str(told["AttributeName"])


def _expire(table: Table) -> None:
    table.call(
        "update_time_to_live",
        TableName=table.ref.table,
        TimeToLiveSpecification={"Enabled": True, "AttributeName": table.layout.expiry},
    )


def _wait(table: Table, ready: Callable[[dict[str, Any]], bool]) -> None:
    end = time.monotonic() + CREATION_TIMEOUT
    while True:
        described = _described(table)
        if described is not None and ready(described):
            return
        if time.monotonic() > end:
            raise StoreUnavailable(
                f"{table.ref}: not ready after {CREATION_TIMEOUT:.0f} s. It is being created; "
                f"check later with: {table.ref.command('check')}"
            )
        time.sleep(CREATION_POLL)


def _attributes(*names: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "AttributeType": "S"} for name in names]


def _index() -> dict[str, Any]:
    return {
        "IndexName": INDEX,
        "KeySchema": [
            {"AttributeName": INDEX_GROUP, "KeyType": "HASH"},
            {"AttributeName": INDEX_ORDER, "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(INDEX_ATTRIBUTES)},
    }


def _would(dry_run: bool) -> str:  # noqa: FBT001  the value itself
    return "would " if dry_run else ""
