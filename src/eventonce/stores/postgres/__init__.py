"""The store in a PostgreSQL database: many machines at once, and completion in your transaction."""

from __future__ import annotations

from eventonce.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
