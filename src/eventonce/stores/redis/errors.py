"""The driver's errors as ours: what was wrong, where, and what to do."""

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
    "this user may not do what eventonce needs ({said}). Give it the keys and commands that "
    "docs/stores/redis.md names."
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
    "this server speaks TLS, and hangs up on everything else. Write rediss:// instead of redis://, "
    "rediss+cluster:// or rediss+sentinel:// likewise."
)
_UNLED: Final = (
    "no sentinel that answers knows a primary by this name ({said}). Is the name in the URI right? "
    "If a failover is under way, workers go on by themselves after it."
)
_AWAY: Final = (
    "cannot be reached, or the connection was lost ({said}). Is the server running, and is the "
    "address right? Workers go on by themselves once it answers."
)
_FULL: Final = (
    "Redis is at its maxmemory ({said}). Runs that were granted can be settled, new ones are not "
    "granted. Raise it, or shorten `remember` in the rules; records leave by themselves when they "
    "expire."
)

_SETTINGS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (AuthenticationError, _REFUSED),
    (AuthorizationError, _REFUSED),
    (NoPermissionError, _FORBIDDEN),
    (MovedError, _IN_A_CLUSTER),
    (ClusterCrossSlotError, _IN_A_CLUSTER),
    (InvalidResponse, "what answers there is no Redis ({said}). Is the address right?"),
)
_LATE: Final = (
    "no answer in time ({said}). What was asked may have been done, and asking again is safe. "
    "`timeout=SECONDS` in the URI gives it longer."
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
_ALONE: Final = (
    "written, but {said} it in time. Asking again is safe; look at the replicas, or lower "
    "wait_replicas."
)
_PASSING: Final[tuple[tuple[type[Exception], str], ...]] = (
    (BusyLoadingError, "it was started just now and is still loading its data. Try again."),
    (MaxConnectionsError, _CROWDED),
    (TimedOut, _LATE),
    (ReadOnlyError, _REPLICA),
    (OutOfMemoryError, _FULL),
    (ClusterDownError, _LEADERLESS),
    (TryAgainError, "this slot is on its way to another server ({said}). Try again."),
    (NotReplicated, _ALONE),
    (MasterNotFoundError, _UNLED),
)
_SAYINGS: Final = (
    ("NOREPLICAS", "too few replicas are in step, and its min-replicas-to-write asks for more"),
    ("MISCONF", "it cannot save to its disk, and refuses writes until it can"),
    ("BUSY", "a script of somebody's keeps it busy"),
    ("max number of clients", "it has as many clients as its maxclients allows"),
)
"""Words of servers that will do better later, in errors that the driver has no class for."""


def explain(
    error: Exception, where: str, *, has_answered: bool, wants_tls: Callable[[], bool] | None = None
) -> EventonceError:
    """Our error for the driver's. `has_answered` says that the store has answered before: then what
    looks like a wrong setting is the world having changed, perhaps to change back. `wants_tls`
    finds out whether the server would have spoken TLS."""
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
    return _explain_words(where, said)


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
    """Whether the server may have hung up on what it does not understand, or said so in TLS."""
    if isinstance(error, RedisClusterException | MasterNotFoundError):
        return "Timeout" not in str(error)
    return type(error) is ConnectionLost or isinstance(error, InvalidResponse)


def _insecure(said: str) -> bool:
    return "certificate" in said.lower() or "SSL" in said


def _explain_words(where: str, said: str) -> EventonceError:
    """The error by its words, where the driver has no class for it."""
    for sign, message in _SAYINGS:
        if sign in said:
            return StoreUnavailable(f"{where}: {message} ({said}). Try again.")
    if "CROSSSLOT" in said:  # of drivers before 6
        return ConfigError(f"{where}: {_IN_A_CLUSTER}")
    if "DB index" in said or "SELECT is not allowed" in said:
        return ConfigError(f"{where}: there is no such database on this server ({said}).")
    if "unknown command" in said.lower() or "syntax error" in said:
        return StoreMismatch(
            f"{where}: the server does not know what eventonce asks of it ({said}). It needs Redis "
            f"6.2 or newer, or Valkey, with scripts allowed."
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
