"""The schema: created and checked by explicit commands only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg

from eventonce.core.ports import Finding, judged
from eventonce.errors import StoreMismatch
from eventonce.stores.postgres.codec import rows
from eventonce.stores.postgres.errors import missing
from eventonce.stores.postgres.uri import Address

FORMAT: Final = 1
"""The format that this release works with; rises only if older releases could not work with it."""

OLDEST_SERVER: Final = 130_000
"""PostgreSQL 13, as the server numbers itself; the tests run on 15 and 18."""

_SCRIPTS: Final = ("schema.sql", "claim.sql", "settle.sql", "sweep.sql")
RIGHTS: Final = {
    "formats": ("SELECT",),
    "records": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "letters": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "sweeps": ("SELECT", "UPDATE"),
}
"""The rights on tables that the store needs."""

FUNCTIONS: Final = ("clock_1", "claim_1", "settle_1", "sweep_1")
"""The functions that this release calls; by default everyone may call them."""

_WOULD: Final = "-- would run, in one transaction:"
_NEWEST: Final = "SELECT format, step FROM {} ORDER BY format DESC, step DESC LIMIT 1"
_NAMES_IN_USE: Final = b"""
    SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace(%s)
    UNION SELECT proname::text FROM pg_proc WHERE pronamespace = to_regnamespace(%s)
"""

_MAY: Final = """
    SELECT coalesce(bool_and(has_table_privilege(c.oid, %s)), true)
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
"""

_MAY_CALL: Final = b"""
    SELECT DISTINCT p.proname::text
    FROM pg_proc AS p
    WHERE
        p.pronamespace = to_regnamespace(%s)
        AND p.proname = ANY (%s)
        AND NOT has_function_privilege(p.oid, 'EXECUTE')
    ORDER BY 1
"""

_LOCK: Final = int.from_bytes(b"EvOn")
"""The advisory lock under which a schema is created."""

Connection = psycopg.Connection[Any]


def create(connection: Connection, address: Address, *, dry_run: bool) -> list[str]:
    """Create the schema; return the statements, none if it exists. Those of a dry run follow a
    comment, so that they can be given to psql."""
    with connection.transaction():
        if not dry_run:
            _one(connection, "SELECT pg_advisory_xact_lock(%s)", _LOCK)
        if _found(connection, address) is not None:
            return []
        statements = [
            statement
            for script in _SCRIPTS
            for statement in _statements(_read(script), address)
            # `IF NOT EXISTS` needs the permission to create a schema even if it exists.
            if not (statement.startswith("CREATE SCHEMA") and _exists(connection, address))
        ]
        if dry_run:
            return [_WOULD, *statements]
        for statement in statements:
            connection.execute(statement.encode())
        return statements


def migrate(connection: Connection, address: Address) -> list[str]:
    """Raise StoreMismatch if the schema does not exist. There is nothing to migrate: a release that
    adds a step brings its statements along."""
    if _found(connection, address) is None:
        raise StoreMismatch(missing(address))
    return []


def check(connection: Connection, address: Address) -> list[Finding]:
    """Check whether this user can work with this schema."""
    version = connection.info.server_version
    number = f"{version // 10_000}.{version % 10_000}"
    new_enough = judged(
        version >= OLDEST_SERVER, f"the server is PostgreSQL {number}", "upgrade it to 13 or newer"
    )
    if not _exists(connection, address):
        return [new_enough, _missing(address)]
    allowed = _allowed(connection, address)
    if not allowed.fine:
        return [new_enough, allowed]
    return [
        new_enough,
        allowed,
        _format(connection, address),
        _complete(connection, address),
        _writable(connection, address),
    ]


def _missing(address: Address) -> Finding:
    what = f"schema {address.schema} has no tables of eventonce"
    return Finding(what, missing(address), missing=True)


def _format(connection: Connection, address: Address) -> Finding:
    try:
        found = _found(connection, address)
    except StoreMismatch as error:
        return Finding("the format is known", str(error))
    if found is None:
        return _missing(address)
    return Finding(f"schema {address.schema} has format {FORMAT}, step {found}")


def diagnose(connection: Connection, address: Address) -> str:
    """Return why a function or a table of eventonce was not found."""
    try:
        found = _found(connection, address)
    except StoreMismatch as error:
        return str(error)
    if found is None:
        return missing(address)
    return (
        f"{address.shown}: schema {address.schema} has format {FORMAT}, step {found}, but not all "
        f"of its tables and functions. Restore it, or drop it and create it again. To see what is "
        f"missing: {address.command('check')}"
    )


def _found(connection: Connection, address: Address) -> int | None:
    """Return the step of the schema; None if there are no tables of eventonce."""
    table = f"{address.quoted}.formats"
    if not _one(connection, "SELECT to_regclass(%s) IS NOT NULL", table):
        return None
    found = rows(connection, _NEWEST.format(table).encode())
    if not found:
        return None
    ((version, step),) = found
    if version != FORMAT:
        raise StoreMismatch(
            f"{address.shown}: schema {address.schema} has format {version}, and this release "
            f"works with {FORMAT}. Install the release that made it here too, or give another "
            f"?schema="
        )
    return int(step)


def _allowed(connection: Connection, address: Address) -> Finding:
    """Return the finding about rights, from the catalogues, which everyone may read."""
    schema, quoted = address.schema, address.quoted
    lacking = []
    if not _one(connection, "SELECT has_schema_privilege(%s, 'USAGE')", schema):
        lacking.append(f"USAGE ON SCHEMA {quoted}")
    lacking += [
        f"{right} ON {quoted}.{table}"
        for table, rights in RIGHTS.items()
        for right in rights
        if not _one(connection, _MAY, right, schema, table)
    ]
    uncallable = rows(connection, _MAY_CALL, quoted, list(FUNCTIONS))
    lacking += [f"EXECUTE ON FUNCTION {quoted}.{function}" for (function,) in uncallable]
    user = _one(connection, "SELECT quote_ident(current_user)") if lacking else ""
    fix = "; ".join(f"GRANT {right} TO {user}" for right in lacking)
    return Finding("this user has the rights that the store needs", fix)


def _complete(connection: Connection, address: Address) -> Finding:
    there = {name for (name,) in rows(connection, _NAMES_IN_USE, address.quoted, address.quoted)}
    lost = sorted({*RIGHTS, *FUNCTIONS} - there)
    fix = f"restore {', '.join(lost)}, or drop the schema and create it again" if lost else ""
    return Finding("its tables and functions exist", fix)


def _writable(connection: Connection, address: Address) -> Finding:
    read_only = _one(connection, "SELECT current_setting('transaction_read_only')") == "on"
    fix = f"name the primary instead of {address.shown}, or ?target_session_attrs=read-write"
    return judged(not read_only, "the server takes writes", fix)


def _exists(connection: Connection, address: Address) -> bool:
    return bool(_one(connection, "SELECT to_regnamespace(%s) IS NOT NULL", address.quoted))


def _one(connection: Connection, query: str, *args: object) -> Any:
    ((value,),) = rows(connection, query.encode(), *args)
    return value


def _read(script: str) -> str:
    return Path(__file__).with_name(script).read_text(encoding="utf-8")


def _statements(script: str, address: Address) -> Iterator[str]:
    """Yield the statements of a script: a statement ends with a line that ends in `;`, outside of
    a function's body."""
    statement: list[str] = []
    within = False
    for line in address.in_schema(script).splitlines():
        if not statement and (not line.strip() or line.startswith("--")):
            continue
        statement.append(line)
        within ^= line.count("$$") % 2 == 1
        if line.endswith(";") and not within:
            yield "\n".join(statement)
            statement = []
