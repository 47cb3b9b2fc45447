"""The store in one SQLite file, for many threads and processes at once."""

from __future__ import annotations

from eventonce.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
