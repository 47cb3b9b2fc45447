"""The store in Redis, Valkey or a cluster of either: for workers on any number of machines."""

from __future__ import annotations

from eventonce.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
