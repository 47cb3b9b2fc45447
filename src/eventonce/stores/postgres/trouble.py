"""The driver's errors as ours: what is wrong, where, and what to do."""

from __future__ import annotations

from typing import Final

import psycopg

from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.stores.postgres.address import Address

REFUSED: Final = {
    "password authentication failed": "28P01",
    "authentication failed": "28000",
    "no password supplied": "28P01",
    "no pg_hba.conf entry": "28000",
    "is not permitted to log in": "28000",
    "no such user": "28000",
    "no such database": "3D000",
    "SCRAM": "28P01",
    "too many connections": "53300",
    "too many clients": "53300",
    "remaining connection slots are reserved": "53300",
    "no more connections allowed": "53300",
    "starting up": "57P03",
    "shutting down": "57P03",
    "in recovery mode": "57P03",
    "session is read-only": "25006",
    "session is not read-only": "25006",
}
"""What a refused connection is told: libpq hands on the words alone, not the code."""

UNKNOWN: Final = frozenset(("42883", "42P01", "3F000", "42704", "42703"))
"""A function, table, schema, type or column that is not there."""

ABSENT: Final = (("database", "3D000"), ("role", "28000"), ("user", "28000"))
"""What `... does not exist` may be about."""


def explain(error: psycopg.Error, address: Address, *, proven: bool) -> EventonceError:
    """Our error for the driver's."""
    code = error.sqlstate or _refusal(str(error))
    schema, place = address.schema, address.shown
    # Before the work begins a refusal is a mistake of ours; later the world has changed, perhaps
    # back: a password is being rotated, a grant was taken away.
    refusal = StoreUnavailable if proven else ConfigError
    match code[:2], code:
        case "28", _:
            return refusal(
                f"{place}: the server refuses this user or password. Look at the URI, at "
                f"PGPASSWORD or ~/.pgpass, and at the server's pg_hba.conf. {_said(error)}"
            )
        case _, "3D000":
            return refusal(
                f"{place}: there is no such database. Make it (createdb), or name another one in "
                f"the URI. {_said(error)}"
            )
        case _, "42501":
            return refusal(
                f"{place}: this user lacks a permission. As the owner of schema {schema}: "
                f"GRANT USAGE ON SCHEMA {schema} TO …; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL "
                f"TABLES IN SCHEMA {schema} TO …; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "
                f"{schema} TO …. {_said(error)}"
            )
        case _, code if code in UNKNOWN:
            return StoreMismatch(missing(address))
        case _, "25006":
            return StoreUnavailable(
                f"{place}: this server is read-only: a replica, or a primary that has just become "
                f"one. Name the primary, or all hosts with ?target_session_attrs=read-write, by "
                f"which libpq finds it. {_said(error)}"
            )
        case _, "53300":
            return StoreUnavailable(
                f"{place}: the server has no connection left. Raise its max_connections, put "
                f"PgBouncer before it, or lower ?connections= and ?transactions= here. "
                f"{_said(error)}"
            )
        case _, "53100":
            return StoreUnavailable(
                f"{place}: the server's disk is full. Nothing of this call was written; make space "
                f"there. `eventonce sweep` and a VACUUM free what expired. {_said(error)}"
            )
        case _, "55P03":
            return StoreUnavailable(
                f"{place}: a row of {schema}.records is locked by a transaction that does not end. "
                f"Look for it in pg_stat_activity (idle in transaction). {_said(error)}"
            )
        case "XX", "XX001" | "XX002":
            return StoreMismatch(
                f"{place}: the server says its data is damaged. Stop the work and restore a "
                f"backup, or REINDEX TABLE {schema}.records. {_said(error)}"
            )
        case "57" | "58" | "53" | "08" | "40" | "XX", _:
            return StoreUnavailable(f"{place}: the server is away or overloaded. {_said(error)}")
        case _ if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return StoreUnavailable(
                f"{place}: the server cannot be reached, or did not answer. Nothing is lost: what "
                f"was asked may be asked again. {_said(error)}"
            )
        case _:
            return StoreError(f"{place}: {_said(error)}")


def missing(address: Address) -> str:
    """What to do where the schema is not there."""
    return (
        f"{address.shown}: there is no eventonce in schema {address.schema} of this database. "
        f"Make it with: eventonce store create {command(address)}"
    )


def older(address: Address, found: int, wanted: int) -> str:
    """What to do where the schema is an older release's."""
    return (
        f"{address.shown}: schema {address.schema} is at step {found}, this release needs step "
        f"{wanted}. Older releases go on working with it. Run: eventonce store migrate "
        f"{command(address)}"
    )


def command(address: Address) -> str:
    """The URI as it can be typed: without user and password, with the schema if it is another."""
    return address.shown + ("" if address.schema == "eventonce" else f"?schema={address.schema}")


def _refusal(words: str) -> str:
    for part, code in REFUSED.items():
        if part in words:
            return code
    if "does not exist" in words:
        for what, code in ABSENT:
            if f'{what} "' in words:
                return code
    return ""


def _said(error: psycopg.Error) -> str:
    # Not the whole of it: the context quotes our own statements.
    return f"It said: {error.diag.message_primary or ' '.join(str(error).split())}"
