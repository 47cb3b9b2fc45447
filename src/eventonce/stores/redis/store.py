"""The Redis store: claims and settlements, each one call a batch, and the dead letters."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from redis import Redis, RedisCluster

from eventonce.arguments import check_keys
from eventonce.core.ledger import Record
from eventonce.core.ports import Finding, Stats
from eventonce.errors import ConfigError, EventonceError, StoreError
from eventonce.stores.probe import PROBE
from eventonce.stores.redis import admin, codec
from eventonce.stores.redis.cluster import Cluster
from eventonce.stores.redis.codec import Keys, Script, Unpackable
from eventonce.stores.redis.connections import NO_WAIT, Build, Command, Reply, Server, Wait
from eventonce.stores.redis.errors import explain
from eventonce.stores.redis.uri import PREFIX, TIMEOUT, read, shown_client
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

REPLICATION_TIMEOUT: Final = 1.0
"""Seconds that replicas may take to confirm, if `wait_replicas` is set: mostly milliseconds."""

LETTERS_A_PAGE: Final = 100
"""Dead letters read or written at once: each holds a whole event, up to some hundred KiB."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Letter).decode
_instant: Final = struct.Struct(">Q")

T = TypeVar("T", Claim, Settlement)


class RedisStore:
    """Records and dead letters in Redis 6.2 or newer, in Valkey, or in a cluster of either.

    Safe in many threads, and across a fork. The server's clock ends leases and windows, and Redis
    deletes expired records. An answer is as durable as the settings of the server make it: with
    `wait_replicas` it has reached so many replicas; without, a failover may lose the last writes.
    `docs/stores/redis.md` says what that means for events.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        prefix: str = PREFIX,
        wait_replicas: int = 0,
        timeout: float = TIMEOUT,
    ) -> None:
        """`client` belongs to the caller: `close` leaves it open. `timeout` is how many seconds a
        settlement waits for a cluster's failover; all other time-outs are the client's own."""
        if isinstance(client, RedisCluster):
            server: Server | Cluster = Cluster(lambda: client)
        elif isinstance(client, Redis):
            server = Server(client)
        else:
            kind = type(client)
            raise ConfigError(
                f"RedisStore needs a redis.Redis or redis.RedisCluster client, and this is a "
                f"{kind.__module__}.{kind.__qualname__}. Stores are synchronous, under asyncio too."
            )
        self._open(server, shown_client(client), prefix, wait_replicas, timeout)

    @classmethod
    def from_uri(cls, uri: str) -> RedisStore:
        """`redis://user:password@host:6379/0`, `redis+cluster://host,host`,
        `redis+sentinel://host,host/name/0`, each with `rediss` for TLS and `valkey` for `redis`, or
        `unix:///path`; with `?prefix=…&timeout=…&wait_replicas=…` and more, see
        docs/stores/redis.md."""
        address = read(uri)
        address.check_here()
        if address.cluster:
            server: Server | Cluster = Cluster(address.connect_cluster, address.hosts)
        else:
            server = Server(address.connect())
        store = cls.__new__(cls)
        # ruff: noqa: SLF001  the class's own instance, which connects at first use
        options = address.options
        store._open(server, str(address), options.prefix, options.wait_replicas, options.timeout)
        store._owned = True
        store._wants_tls = address.wants_tls
        return store

    def _open(
        self, server: Server | Cluster, where: str, prefix: str, wait_replicas: int, timeout: float
    ) -> None:
        self._server = server
        self._where = where
        self._keys = Keys(prefix)
        self._timeout = timeout
        self._wait = Wait(wait_replicas, int(min(REPLICATION_TIMEOUT, timeout / 2) * 1000))
        self._waiting = wait_replicas > 0
        self._has_answered = False
        self._owned = False
        self._wants_tls: Callable[[], bool] | None = None

    def __repr__(self) -> str:
        return f"RedisStore({self._where!r}, prefix={self._keys.prefix!r})"

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        if not claims:
            return []
        keys = [claim.key for claim in claims]
        build = self._builder(codec.CLAIM, keys, claims, codec.pack_claims, now)
        try:
            answers = self._server.execute_batch(keys, build, self._wait)
        except Unpackable as fault:
            # Only the claim that no record can hold gets the error.
            if len(claims) > 1:
                return [self.claim([claim], now)[0] for claim in claims]
            return [Verdict("error", error=StoreError(f"Redis cannot hold this claim: {fault}"))]
        if len(answers) == 1:
            return codec.verdicts(claims, self._value(answers[0][1]))
        self._has_answered |= not all(isinstance(reply, Exception) for _, reply in answers)
        by_index: dict[int, Verdict] = {}
        errors = []
        for part, reply in answers:
            indexes = part or ()
            if isinstance(reply, Exception):
                errors.append(error := self._explained(reply))
                by_index.update(dict.fromkeys(indexes, Verdict("error", error=error)))
            else:
                verdicts = codec.verdicts([claims[index] for index in indexes], reply)
                by_index.update(zip(indexes, verdicts, strict=True))
        if len(errors) == len(answers):
            raise errors[0]
        return [by_index[index] for index in range(len(claims))]

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        if not settlements:
            return []
        keys = [settlement.claim.key for settlement in settlements]
        build = self._builder(codec.SETTLE, keys, settlements, codec.pack_settlements, now)
        try:
            answers = self._server.execute_batch(keys, build, self._wait, self._timeout)
        except Unpackable:
            if len(settlements) > 1:
                return [self.settle([settlement], now)[0] for settlement in settlements]
            # A claim that no record can hold was never granted.
            return ["unknown"]
        if len(answers) == 1:
            return codec.kept(self._value(answers[0][1]))
        kept: dict[int, SettleResult] = {}
        for part, reply in answers:
            kept.update(zip(part or (), codec.kept(self._value(reply)), strict=True))
        return [kept[index] for index in range(len(settlements))]

    def _builder(
        self,
        script: Script,
        keys: Sequence[bytes],
        asked: Sequence[T],
        pack: Callable[..., bytes],
        now: int | None,
    ) -> Build:
        """Return a function that builds the command of this script for some of `asked`."""

        def build(indexes: Sequence[int] | None) -> Command:
            some, theirs = asked, keys
            if indexes is not None:
                some, theirs = [asked[n] for n in indexes], [keys[n] for n in indexes]
            packed = pack(some, now, waiting=self._waiting)
            slot = self._keys.slot(theirs[0])
            return _evalsha(script, self._keys.of(theirs), (packed,), slot)

        return build

    def show(self, key: bytes) -> Record | None:
        check_keys([key])
        keys = self._keys.of([key])
        fields = self._one(_evalsha(codec.SHOW, keys, (codec.NOTHING_ASKED,), self._keys.slot(key)))
        return None if fields is None else codec.record(fields)

    def forget(self, keys: Sequence[bytes]) -> int:
        return sum(self._counts(keys, lambda names, slot: Command((b"DEL", *names), slot)))

    def clear_results(self, keys: Sequence[bytes]) -> int:
        given = (codec.NOTHING_ASKED,)
        counts = self._counts(keys, lambda names, slot: _evalsha(codec.CLEAR, names, given, slot))
        return sum(map(codec.cleared, counts))

    def _counts(
        self, keys: Sequence[bytes], command: Callable[[Sequence[bytes], int], Command]
    ) -> list[int]:
        """Return the answers to this command for the names of all records."""
        check_keys(keys)
        if not keys:
            return []

        def build(indexes: Sequence[int] | None) -> Command:
            some = keys if indexes is None else [keys[n] for n in indexes]
            return command(self._keys.of(some), self._keys.slot(some[0]))

        answers = self._server.execute_batch(keys, build, self._wait)
        return [self._value(reply) for _, reply in answers]

    def put_letters(self, letters: Sequence[Letter]) -> None:
        for start in range(0, len(letters), LETTERS_A_PAGE):
            page = letters[start : start + LETTERS_A_PAGE]
            # A run must be able to end with a dead letter even if the memory is full. Dead letters
            # of input that never ran are not limited in number: they wait until there is memory.
            # An event that no handler takes may be dead, too, and has no key.
            if_full = any(letter.status == "dead" and letter.key for letter in page)
            words = [b"put_if_full" if if_full else b"put"]
            for letter in page:
                words += (letter.id.encode(), _instant.pack(letter.at) + _encode(letter))
            self._change_letters(words)

    def drop_letters(self, ids: Sequence[str], before: int | None = None) -> int:
        instant = b"" if before is None else _instant.pack(before)
        words = [b"drop", instant, *(name.encode() for name in ids)]
        return int(self._change_letters(words)) if ids else 0

    def _change_letters(self, words: Sequence[bytes]) -> Any:
        keys = (self._keys.letters, self._keys.letters_by_time)
        command = _evalsha(codec.LETTERS, keys, words, self._keys.letters_slot)
        return self._one(command, self._wait, self._timeout)

    def letter(self, id: str) -> Letter | None:
        body = self._of_letters(b"HGET", self._keys.letters, id.encode())
        return None if body is None else _letter(body)

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        """Yield dead letters page by page: some may be dropped meanwhile."""
        start = b"-"
        limit = (b"+", b"LIMIT", b"0", b"%d" % LETTERS_A_PAGE)
        while page := self._of_letters(b"ZRANGEBYLEX", self._keys.letters_by_time, start, *limit):
            ids = [entry[_instant.size :] for entry in page]
            for body in self._of_letters(b"HMGET", self._keys.letters, *ids):
                # None if it was dropped between the two calls.
                if body is not None and consumer in (None, (letter := _letter(body)).consumer):
                    yield letter
            start = b"(" + page[-1]

    def names(self) -> list[str]:
        kept = self._of_letters(b"ZRANGEBYLEX", self._keys.names, b"-", b"+")
        return [name.decode() for name in kept]

    def add_name(self, name: str) -> None:
        # A sorted set, because the documented permissions of a user include ZADD, for dead letters.
        self._of_letters(b"ZADD", self._keys.names, b"0", name.encode())

    def _of_letters(self, *words: bytes) -> Any:
        return self._one(Command(words, self._keys.letters_slot))

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:  # noqa: ARG002  nothing to do
        """Do nothing: Redis deletes expired records."""
        return 0

    def stats(self) -> Stats:
        """Count the records in steps: exact if none is written or deleted meanwhile."""
        try:
            nodes = self._server.nodes()
            records = sum(admin.count_records(node, self._keys.pattern()) for node in nodes)
        except admin.SERVER_ERRORS as error:
            raise self._explained(error) from error
        return Stats(records=records, letters=self._of_letters(b"HLEN", self._keys.letters))

    def create(self, *, dry_run: bool = False) -> list[str]:  # noqa: ARG002  nothing to do
        """Check that Redis answers; it needs no schema."""
        self.show(PROBE.key)
        return []

    def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Do nothing but check: records of an older form are rewritten when they change."""
        return self.create(dry_run=dry_run)

    def check(self) -> list[Finding]:
        # An error of the connection or the login is raised, not reported as a finding.
        self.show(PROBE.key)
        return admin.check(self, self, self._server.nodes, self._wait.replicas)

    def close(self) -> None:
        """Close the connections; a client of the caller is left open."""
        self._server.close(client=self._owned)

    def _one(self, command: Command, wait: Wait = NO_WAIT, retry_for: float = 0.0) -> Any:
        (reply,) = self._server.execute([command], wait, retry_for)
        return self._value(reply)

    def _value(self, reply: Reply) -> Any:
        if isinstance(reply, Exception):
            raise self._explained(reply)
        self._has_answered = True
        return reply

    def _explained(self, error: Exception) -> EventonceError:
        explained = explain(
            error, self._where, has_answered=self._has_answered, wants_tls=self._wants_tls
        )
        explained.__cause__ = error
        return explained


def _evalsha(script: Script, keys: Sequence[bytes], args: Sequence[bytes], slot: int) -> Command:
    return Command((b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *args), slot, script.text)


def _letter(body: bytes) -> Letter:
    return _decode(body[_instant.size :])
