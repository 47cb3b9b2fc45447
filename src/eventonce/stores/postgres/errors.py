"""Errors of the driver as errors of eventonce: what is wrong, where, and what to do."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.stores.postgres.uri import Address

REFUSED_CODES: Final = {
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
"""The words of a refused connection and its code: libpq returns only the words."""

WRONG_OPTIONS: Final = (
    "bad value",
    "certificate",
    "channel binding required",
    "could not parse network address",
    "definition of service",
    "does not support SSL",
    "encryption required",
    "invalid ",
    "may not be used",
    "method requirement",
    "private key",
    "requires a value",
    "unknown ca",
    "unrecognized configuration parameter",
)
"""The words of wrong options, which do not change by waiting, in errors without a code."""

UNKNOWN_OBJECT: Final = frozenset(("42883", "42P01", "3F000", "42704", "42703"))
"""The codes of an unknown function, table, schema, type or column."""

ABSENT_CODES: Final = (("database", "3D000"), ("role", "28000"), ("user", "28000"))
"""The objects that `... does not exist` can be about."""


def explain(error: psycopg.Error, address: Address, *, has_answered: bool) -> EventonceError:
    """Return our error for the driver's."""
    code = error.sqlstate or _refusal(str(error))
    schema, place = address.quoted, address.shown
    mistake = _mistake(code, str(error), schema)
    if mistake:
        # Before the first answer it is a wrong setting. Later it may pass: for example, a password
        # is being rotated, or a grant was revoked.
        refusal = StoreUnavailable if has_answered else ConfigError
        return refusal(f"{place}: {mistake}. {_message(error)}")
    match code[:2], code:
        case _, code if code in UNKNOWN_OBJECT:
            return StoreMismatch(missing(address))
        case _, "25006":
            return StoreUnavailable(
                f"{place}: this server is read-only: a replica, or a primary that has just become "
                f"one. Name the primary, or all hosts with ?target_session_attrs=read-write, by "
                f"which libpq finds it. {_message(error)}"
            )
        case _, "53300":
            return StoreUnavailable(
                f"{place}: the server has no connection left. Raise its max_connections, put "
                f"PgBouncer before it, or lower ?connections= and ?transactions= here. "
                f"{_message(error)}"
            )
        case _, "53100":
            return StoreUnavailable(
                f"{place}: the server's disk is full. Nothing of this call was written; free some "
                f"space. `eventonce sweep` and a VACUUM free expired records. {_message(error)}"
            )
        case _, "55P03":
            return StoreUnavailable(
                f"{place}: a row of {schema}.records is locked by a transaction that does not end. "
                f"Look for it in pg_stat_activity (idle in transaction). {_message(error)}"
            )
        case "XX", "XX001" | "XX002":
            return StoreMismatch(
                f"{place}: the server says its data is damaged. Stop all workers and restore a "
                f"backup, or REINDEX TABLE {schema}.records. {_message(error)}"
            )
        case "57" | "58" | "53" | "08" | "40" | "XX", _:
            return StoreUnavailable(f"{place}: the server is down or overloaded. {_message(error)}")
        case _ if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return StoreUnavailable(
                f"{place}: the server cannot be reached, or did not answer. Calling again is safe. "
                f"{_message(error)}"
            )
        case _:
            return StoreError(f"{place}: {_message(error)}")


_QUOTED: Final = re.compile(r"""(["']).*?\1""")


def _mistake(code: str, words: str, schema: str) -> str:
    """Return the mistake in the settings; empty if there is none."""
    if code.startswith("28"):
        return (
            "the server refuses this user or password. Check the URI, PGPASSWORD or "
            "~/.pgpass, and the server's pg_hba.conf"
        )
    if code == "3D000":
        return "there is no such database. Create it (createdb), or name another one in the URI"
    if code == "42501":
        return (
            f"this user lacks a permission. As the owner of schema {schema}: GRANT USAGE ON SCHEMA "
            f"{schema} TO …; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} "
            f"TO …; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO …"
        )
    # Not in quoted names: a host may have any name.
    bare = _QUOTED.sub("", words)
    if not code and any(sign in bare for sign in WRONG_OPTIONS):
        return (
            "an option in the URI, or in the environment (PGSSLMODE, PGSERVICE, …), is wrong, or "
            "not supported by this server"
        )
    return ""


def missing(address: Address) -> str:
    """Return the advice for a schema that does not exist."""
    return (
        f"{address.shown}: schema {address.schema} of this database has no tables of eventonce. "
        f"Create it: {address.command('create')}"
    )


def _refusal(words: str) -> str:
    for part, code in REFUSED_CODES.items():
        if part in words:
            return code
    if "does not exist" in words:
        for what, code in ABSENT_CODES:
            if f'{what} "' in words:
                return code
    return ""


def _message(error: psycopg.Error) -> str:
    # Not the whole error: its context quotes our own statements.
    return f"It said: {error.diag.message_primary or ' '.join(str(error).split())}"
