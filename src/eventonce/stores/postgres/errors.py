"""The driver's errors as ours: what is wrong, where, and what to do."""

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
"""The words about a refused connection: libpq hands on the words alone, not the code."""

SETTINGS: Final = (
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
"""The words about options that no waiting will mend, in errors that have no code."""

UNKNOWN: Final = frozenset(("42883", "42P01", "3F000", "42704", "42703"))
"""A function, table, schema, type or column that is not there."""

ABSENT: Final = (("database", "3D000"), ("role", "28000"), ("user", "28000"))
"""The objects that `... does not exist` may be about."""


def explain(error: psycopg.Error, address: Address, *, proven: bool) -> EventonceError:
    """Our error for the driver's."""
    code = error.sqlstate or _refusal(str(error))
    schema, place = address.quoted, address.shown
    mistake = _mistake(code, str(error), schema)
    if mistake:
        # Before the work begins it is a mistake of ours; later the world has changed, perhaps back:
        # a password is being rotated, a grant was taken away.
        refusal = StoreUnavailable if proven else ConfigError
        return refusal(f"{place}: {mistake}. {_said(error)}")
    match code[:2], code:
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


_QUOTED: Final = re.compile(r"""(["']).*?\1""")


def _mistake(code: str, words: str, schema: str) -> str:
    """The mistake in the set-up, empty if there is none."""
    if code.startswith("28"):
        return (
            "the server refuses this user or password. Look at the URI, at PGPASSWORD or "
            "~/.pgpass, and at the server's pg_hba.conf"
        )
    if code == "3D000":
        return "there is no such database. Create it (createdb), or name another one in the URI"
    if code == "42501":
        return (
            f"this user lacks a permission. As the owner of schema {schema}: GRANT USAGE ON SCHEMA "
            f"{schema} TO …; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} "
            f"TO …; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO …"
        )
    # Not in the names it quotes: a host may be called anything.
    bare = _QUOTED.sub("", words)
    if not code and any(sign in bare for sign in SETTINGS):
        return (
            "an option in the URI, or in the environment (PGSSLMODE, PGSERVICE, …), is wrong, or "
            "asks for what this server does not do"
        )
    return ""


def missing(address: Address) -> str:
    """The advice where the schema does not exist."""
    return (
        f"{address.shown}: there is no eventonce in schema {address.schema} of this database. "
        f"Create it with: {command(address, 'create')}"
    )


def older(address: Address, found: int, wanted: int) -> str:
    """The advice where the schema is an older release's."""
    return (
        f"{address.shown}: schema {address.schema} is at step {found}, this release needs step "
        f"{wanted}. Older releases go on working with it. Run: {command(address, 'migrate')}"
    )


def command(address: Address, verb: str) -> str:
    """A command that can be typed as it stands; a password that stood in the URI is left to
    PGPASSWORD. The address of a caller's own pool is not known here."""
    if not address.typed:
        return f"PostgresStore(pool, schema={address.schema!r}).{verb}()"
    return f'eventonce store {verb} "{address.typed}"'


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
