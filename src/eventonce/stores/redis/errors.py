"""Errors of the driver as errors of eventonce: what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    InvalidResponse,
    MaxConnectionsError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    TryAgainError,
)
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import TimeoutError as TimedOut
from redis.sentinel import MasterNotFoundError

from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.stores.redis.connections import NotReplicated

_REFUSED: Final = (
    "the user name or password is refused ({said}). Give the right ones in the URI, "
    "percent-encoded: redis://user:password@host:6379/0."
)
_FORBIDDEN: Final = (
    "this user lacks a permission that eventonce needs ({said}). Give it the keys and commands in "
    "docs/stores/redis.md."
)
_FORBIDDEN_IN_SCRIPT: Final = (
    "ACL failure in script",  # Valkey
    "The user executing the script can't",  # Redis 6.2 and 7
)
_IN_A_CLUSTER: Final = (
    "this server is part of a cluster, and the key lies on another one. Write redis+cluster:// "
    "instead of redis://, or give a RedisCluster client."
)
_NO_CLUSTER: Final = (
    "this server is not part of a cluster. Write redis:// instead of redis+cluster://."
)
_INSECURE: Final = (
    "no secure connection ({said}). Does the server speak TLS, as rediss:// says, and is the "
    "authority of its certificate known here? ssl_ca_certs=FILE in the URI names one."
)
_PLAIN: Final = (
    "this server speaks TLS, and closes other connections. Write rediss:// instead of redis://, "
    "rediss+cluster:// or rediss+sentinel:// likewise."
)
_UNLED: Final = (
    "no sentinel that answers knows a primary by this name ({said}). Is the name in the URI right? "
    "If a failover is under way, workers continue by themselves after it."
)
_AWAY: Final = (
    "cannot be reached, or the connection was lost ({said}). Is the server running, and is the "
    "address right? Workers continue by themselves once it answers."
)
_FULL: Final = (
    "Redis is at its maxmemory ({said}). Granted runs can be settled, but no new run is granted. "
    "Raise maxmemory, or shorten `remember` in the rules; Redis deletes records when they expire."
)

_SETTINGS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (AuthenticationError, _REFUSED),
    (AuthorizationError, _REFUSED),
    (NoPermissionError, _FORBIDDEN),
    (MovedError, _IN_A_CLUSTER),
    (ClusterCrossSlotError, _IN_A_CLUSTER),
    (InvalidResponse, "the server that answers is not Redis ({said}). Is the address right?"),
)
_LATE: Final = (
    "no answer in time ({said}). The call may have taken effect, and calling again is safe. "
    "`timeout=SECONDS` in the URI allows more time."
)
_REPLICA: Final = (
    "this is a read-only replica. Give the address of the primary, or one that leads to it after a "
    "failover too: redis+cluster://, a Sentinel client, the provider's primary endpoint."
)
_CROWDED: Final = (
    "all connections of the client's pool are in use. Raise its max_connections, or let fewer "
    "threads share it."
)
_LEADERLESS: Final = (
    "the cluster does not serve this slot now ({said}); a failover may be under way. Try again."
)
_UNREPLICATED: Final = (
    "written, but {said} it in time. Calling again is safe; check the replicas, or lower "
    "wait_replicas."
)
_PASSING: Final[tuple[tuple[type[Exception], str], ...]] = (
    (BusyLoadingError, "it has just started and is still loading its data. Try again."),
    (MaxConnectionsError, _CROWDED),
    (TimedOut, _LATE),
    (ReadOnlyError, _REPLICA),
    (OutOfMemoryError, _FULL),
    (ClusterDownError, _LEADERLESS),
    (TryAgainError, "this slot is being moved to another server ({said}). Try again."),
    (NotReplicated, _UNREPLICATED),
    (MasterNotFoundError, _UNLED),
)
_SAYINGS: Final = (
    ("NOREPLICAS", "fewer replicas are in sync than its min-replicas-to-write requires"),
    ("MISCONF", "it cannot save to its disk, and refuses writes until it can"),
    ("BUSY", "a script of another client keeps it busy"),
    ("max number of clients", "it has as many clients as its maxclients allows"),
)
"""Words in errors without a class in the driver, about conditions that pass."""


def explain(
    error: Exception, where: str, *, has_answered: bool, wants_tls: Callable[[], bool] | None = None
) -> EventonceError:
    """Return our error for the driver's. If the store `has_answered` before, an error that looks
    like a wrong setting may pass, and is StoreUnavailable. `wants_tls` finds out whether the server
    speaks TLS."""
    said = str(error)
    if wants_tls is not None and not has_answered and _hung_up(error) and wants_tls():
        return ConfigError(f"{where}: {_PLAIN}")
    for kind, message in _SETTINGS:
        if isinstance(error, kind):
            return _setting(where, message.format(said=said), has_answered=has_answered)
    for kind, message in _PASSING:
        if isinstance(error, kind):
            return StoreUnavailable(f"{where}: {message.format(said=said)}")
    if isinstance(error, ConnectionLost):
        if "Too many connections" in said:  # of drivers before 6
            return StoreUnavailable(f"{where}: {_CROWDED}")
        if _insecure(said):
            return _setting(where, _INSECURE.format(said=said), has_answered=has_answered)
        return StoreUnavailable(f"{where}: {_AWAY.format(said=said)}")
    if isinstance(error, RedisClusterException):
        return _explain_cluster(error, where, said, has_answered=has_answered)
    return _explain_words(where, said, has_answered=has_answered)


def _explain_cluster(
    error: RedisClusterException, where: str, said: str, *, has_answered: bool
) -> EventonceError:
    cause = error.__cause__
    if isinstance(cause, AuthenticationError):
        return explain(cause, where, has_answered=has_answered)
    if _insecure(said):
        return _setting(where, _INSECURE.format(said=said), has_answered=has_answered)
    if "Cluster mode is not enabled" in said:
        return ConfigError(f"{where}: {_NO_CLUSTER}")
    return StoreUnavailable(f"{where}: {_AWAY.format(said=said)}")


def _hung_up(error: Exception) -> bool:
    """Return whether the server may have closed a connection without TLS, or answered in TLS."""
    if isinstance(error, RedisClusterException | MasterNotFoundError):
        return "Timeout" not in str(error)
    return type(error) is ConnectionLost or isinstance(error, InvalidResponse)


def _insecure(said: str) -> bool:
    return "certificate" in said.lower() or "SSL" in said


def _explain_words(where: str, said: str, *, has_answered: bool) -> EventonceError:
    """Return our error by the words of an error that has no class in the driver."""
    for sign, message in _SAYINGS:
        if sign in said:
            return StoreUnavailable(f"{where}: {message} ({said}). Try again.")
    if any(sign in said for sign in _FORBIDDEN_IN_SCRIPT):
        return _setting(where, _FORBIDDEN.format(said=said), has_answered=has_answered)
    if "CROSSSLOT" in said:  # of drivers before 6
        return ConfigError(f"{where}: {_IN_A_CLUSTER}")
    if "DB index" in said or "SELECT is not allowed" in said:
        return ConfigError(f"{where}: there is no such database on this server ({said}).")
    if "unknown command" in said.lower() or "syntax error" in said:
        return StoreMismatch(
            f"{where}: the server does not know a command that eventonce needs ({said}). It must "
            f"be Redis 6.2 or newer, or Valkey, with scripts allowed."
        )
    if "WRONGTYPE" in said:
        return StoreMismatch(
            f"{where}: a key under this prefix belongs to another application ({said}). Give a "
            f"prefix of its own: ?prefix= in the URI, or RedisStore(client, prefix=…)."
        )
    return StoreError(f"{where}: {said}")


def _setting(where: str, message: str, *, has_answered: bool) -> EventonceError:
    kind = StoreUnavailable if has_answered else ConfigError
    return kind(f"{where}: {message}")
