"""One Redis, or the one that a Sentinel or a DNS name leads to: a batch is one call."""

from __future__ import annotations

from collections.abc import Sequence

from redis import Redis
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as TimedOut

from eventonce.stores.redis.calls import Answered, Call, Lines, Make, Reply, Wait, ask, exchange
from eventonce.stores.redis.codec import MOST


class Server:
    """Calls to a single server."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._lines = Lines(client.connection_pool)

    def ask(
        self, keys: Sequence[bytes], make: Make, wait: Wait, patience: float = 0.0
    ) -> list[Answered]:
        """The replies about all of these; more than one only if they are thousands."""
        count = len(keys)
        if count <= MOST:
            return [(None, self._reply(make(None), wait))]
        shares = [range(start, min(start + MOST, count)) for start in range(0, count, MOST)]
        replies = self.replies([make(share) for share in shares], wait, patience)
        return list(zip(shares, replies, strict=True))

    def _reply(self, call: Call, wait: Wait) -> Reply:
        if not wait.replicas:
            try:
                return ask(self._lines, call)
            except TimedOut as error:
                return error
            except RedisError:
                """Asked again below, with all that may help."""
        return self.replies([call], wait)[0]

    def replies(self, calls: Sequence[Call], wait: Wait, patience: float = 0.0) -> list[Reply]:  # noqa: ARG002  a cluster has use for it
        """A connection that was lost is made anew once: asking again is safe."""
        try:
            replies = self._once(calls, wait)
            if any(isinstance(reply, ReadOnlyError) for reply in replies):
                self._lines.hang_up()
                replies = self._once(calls, wait)
        except RedisError as error:
            return [error] * len(calls)
        return replies

    def _once(self, calls: Sequence[Call], wait: Wait) -> list[Reply]:
        try:
            return exchange(self._lines, calls, wait)
        except ConnectionLost as error:
            # Its subclasses say no (a password, loading, too many connections), and say so again.
            if type(error) is not ConnectionLost:
                raise
        self._lines.hang_up()
        return exchange(self._lines, calls, wait)

    def lines(self) -> list[Lines]:
        """To each server that holds records."""
        return [self._lines]

    def close(self, *, client: bool) -> None:
        """Let go of the connections, and of the client's own if that is to be closed too."""
        self._lines.hang_up()
        if client:
            self._client.close()
