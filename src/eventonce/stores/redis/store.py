"""The Redis store: the two verbs, each one call a batch, and the shelf."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress
from typing import Any, Final, TypeVar

from redis import Redis, RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from eventonce.core.ledger import Record
from eventonce.core.ports import Finding, Stats
from eventonce.errors import ConfigError, EventonceError
from eventonce.stores.probe import PROBE
from eventonce.stores.redis import admin as upkeep
from eventonce.stores.redis import codec as packing
from eventonce.stores.redis import letters as shelf
from eventonce.stores.redis import scripts
from eventonce.stores.redis.calls import (
    NO_WAIT,
    Call,
    Lines,
    Make,
    Reply,
    Wait,
    exchange,
    script_call,
)
from eventonce.stores.redis.cluster import Cluster
from eventonce.stores.redis.errors import explain
from eventonce.stores.redis.names import Names
from eventonce.stores.redis.scripts import Script
from eventonce.stores.redis.server import Server
from eventonce.stores.redis.uri import PREFIX, TIMEOUT, place_of, shown_client
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

STEP: Final = 2_000
"""Keys looked at in one step of a count: under a millisecond for which others wait."""

REPLICATION: Final = 1.0
"""Seconds replicas may take to confirm, where they are waited for: they are milliseconds behind."""

T = TypeVar("T", Claim, Settlement)


class RedisStore:
    """Records and letters in Redis 6.2 or newer, in Valkey, or in a cluster of either.

    Safe in many threads, and across a fork. Leases and windows end by the server's own clock, and
    records leave by its own expiry. An answer that was given is as durable as the server is set up
    to make it: with `wait_replicas` it has reached so many replicas, without it a failover may lose
    the last moment's writes; `docs/stores/redis.md` says what that means for events.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        prefix: str = PREFIX,
        wait_replicas: int = 0,
        timeout: float = TIMEOUT,
    ) -> None:
        """`client` stays the user's: `close` leaves it open. `timeout` is for how many seconds a
        settlement waits for a cluster's failover; all other times are the client's own."""
        if isinstance(client, RedisCluster):
            server: Server | Cluster = Cluster(lambda: client)
        elif isinstance(client, Redis):
            server = Server(client)
        else:
            kind = type(client)
            raise ConfigError(
                f"RedisStore: a redis.Redis or redis.RedisCluster client is needed, and this is a "
                f"{kind.__module__}.{kind.__qualname__}. Stores are synchronous, under asyncio too."
            )
        self._begin(server, shown_client(client), prefix, wait_replicas, timeout)
        self._owned = False

    @classmethod
    def from_uri(cls, uri: str) -> RedisStore:
        """`redis://user:password@host:6379/0`, `redis+cluster://host,host`,
        `redis+sentinel://host,host/name/0`, each with `rediss` for TLS and `valkey` for `redis`, or
        `unix:///path`; with `?prefix=…&timeout=…&wait_replicas=…` and more, as docs/stores/redis.md
        has them."""
        place = place_of(uri)
        place.check_here()
        if place.cluster:
            server: Server | Cluster = Cluster(place.connect_cluster, place.hosts)
        else:
            server = Server(place.connect())
        store = cls.__new__(cls)
        # ruff: noqa: SLF001  the class makes its own instance, which connects when first used
        store._begin(server, place.shown(), place.prefix, place.wait_replicas, place.timeout)
        store._owned = True
        store._wants_tls = place.wants_tls
        return store

    def _begin(
        self, server: Server | Cluster, where: str, prefix: str, wait_replicas: int, timeout: float
    ) -> None:
        self._server = server
        self._where = where
        self._names = Names(prefix)
        self._timeout = timeout
        self._wait = Wait(wait_replicas, int(min(REPLICATION, timeout / 2) * 1000))
        self._proven = False
        self._wants_tls: Callable[[], bool] | None = None

    def __repr__(self) -> str:
        return f"RedisStore({self._where!r}, prefix={self._names.prefix!r})"

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        if not claims:
            return []
        keys = [claim.key for claim in claims]
        make = self._maker(scripts.CLAIM, keys, claims, packing.pack_claims, now)
        try:
            answers = self._server.ask(keys, make, self._wait)
        except packing.Unpackable:
            return self._claim_some(claims, now)
        if len(answers) == 1:
            return packing.verdicts(claims, self._value(answers[0][1]))
        self._proven |= not all(isinstance(reply, Exception) for _, reply in answers)
        given: dict[int, Verdict] = {}
        errors = []
        for places, reply in answers:
            asked = places or ()
            if isinstance(reply, Exception):
                errors.append(error := self._explained(reply))
                given.update(dict.fromkeys(asked, Verdict("error", error=error)))
            else:
                verdicts = packing.verdicts([claims[place] for place in asked], reply)
                given.update(zip(asked, verdicts, strict=True))
        if len(errors) == len(answers):
            raise errors[0]
        return [given[place] for place in range(len(claims))]

    def _claim_some(self, claims: Sequence[Claim], now: int | None) -> list[Verdict]:
        """Some cannot be packed: each of them has that for its verdict, and the others go on."""
        refused = [packing.unpackable(claim) for claim in claims]
        given = iter(self.claim(list(compress(claims, (not bad for bad in refused))), now))
        return [next(given) if bad is None else bad for bad in refused]

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        if not settlements:
            return []
        keys = [settlement.claim.key for settlement in settlements]
        make = self._maker(scripts.SETTLE, keys, settlements, packing.pack_settlements, now)
        try:
            answers = self._server.ask(keys, make, self._wait, self._timeout)
        except packing.Unpackable:
            return self._settle_some(settlements, now)
        if len(answers) == 1:
            return packing.kept(self._value(answers[0][1]))
        kept: dict[int, SettleResult] = {}
        for places, reply in answers:
            kept.update(zip(places or (), packing.kept(self._value(reply)), strict=True))
        return [kept[place] for place in range(len(settlements))]

    def _settle_some(
        self, settlements: Sequence[Settlement], now: int | None
    ) -> list[SettleResult]:
        """Some cannot be packed: no run was ever granted to them."""
        packable = [packing.unpackable(it.claim) is None for it in settlements]
        given = iter(self.settle(list(compress(settlements, packable)), now))
        return [next(given) if good else "unknown" for good in packable]

    def show(self, key: bytes) -> Record | None:
        asked = [packing.head(None, waiting=False)]
        call = script_call(scripts.SHOW, self._names.of([key]), asked, self._names.slot(key))
        fields = self._one(call)
        return None if fields is None else packing.record(fields)

    def put_letters(self, letters: Sequence[Letter]) -> None:
        for call in shelf.putting(self._names, letters):
            self._one(call, self._wait)

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        every = shelf.oldest_first(self._names, self._one)
        return (letter for letter in every if consumer in (None, letter.consumer))

    def letter(self, id: str) -> Letter | None:
        body = self._one(shelf.one(self._names, id))
        return None if body is None else shelf.read(body)

    def drop_letters(self, ids: Sequence[str]) -> int:
        return int(self._one(shelf.dropping(self._names, ids), self._wait)) if ids else 0

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:  # noqa: ARG002  nothing to do
        """Redis drops what expired by itself."""
        return 0

    def forget(self, keys: Sequence[bytes]) -> int:
        if not keys:
            return 0

        def drop(places: Sequence[int] | None) -> Call:
            some = keys if places is None else [keys[n] for n in places]
            return Call((b"DEL", *self._names.of(some)), self._names.slot(some[0]))

        return sum(self._value(reply) for _, reply in self._server.ask(keys, drop, self._wait))

    def stats(self) -> Stats:
        """Counted one by one, in steps: exact while nothing comes or goes."""
        try:
            records = sum(self._count(lines) for lines in self._server.lines())
        except (RedisError, RedisClusterException) as error:
            raise self._explained(error) from error
        return Stats(records=records, letters=self._one(shelf.counting(self._names)))

    def _count(self, lines: Lines) -> int:
        cursor, records = b"0", 0
        while True:
            words = (cursor, self._names.pattern(), b"%d" % STEP)
            (reply,) = exchange(lines, [script_call(scripts.COUNT, (), words)], NO_WAIT)
            cursor, found = self._value(reply)
            records += int(found)
            if cursor == b"0":
                return records

    def create(self, *, dry_run: bool = False) -> list[str]:  # noqa: ARG002  nothing to do
        """Redis needs nothing made beforehand; that it is there is looked at."""
        self.show(PROBE.key)
        return []

    def migrate(self, *, dry_run: bool = False) -> list[str]:  # noqa: ARG002  nothing to do
        """Records of an older form are read as they are, and are written anew when they change."""
        self.show(PROBE.key)
        return []

    def check(self) -> list[Finding]:
        # What cannot be reached, or lets nobody in, cannot be looked at: that is raised.
        self.show(PROBE.key)
        tried = upkeep.try_out(self, self)
        if not tried.fine:
            return [tried]
        try:
            looks = [upkeep.look(lines, self._wait.replicas) for lines in self._server.lines()]
            # Servers of a cluster that are alike need be told of once.
            return list(dict.fromkeys([tried, *chain.from_iterable(looks)]))
        except (RedisError, RedisClusterException) as error:
            return [tried, Finding("it shows how it is set up", fine=False, fix=str(error))]

    def close(self) -> None:
        """Let go of the connections; a client that was given is left as it is."""
        self._server.close(client=self._owned)

    def _maker(
        self,
        script: Script,
        keys: Sequence[bytes],
        asked: Sequence[T],
        pack: Callable[..., bytes],
        now: int | None,
    ) -> Make:
        """Makes the calls of this script that ask for some of these."""
        waiting = self._wait.replicas > 0

        def make(places: Sequence[int] | None) -> Call:
            some, theirs = asked, keys
            if places is not None:
                some, theirs = [asked[n] for n in places], [keys[n] for n in places]
            packed = pack(some, now, waiting=waiting)
            slot = self._names.slot(theirs[0])
            return script_call(script, self._names.of(theirs), (packed,), slot)

        return make

    def _one(self, call: Call, wait: Wait = NO_WAIT) -> Any:
        (reply,) = self._server.replies([call], wait)
        return self._value(reply)

    def _value(self, reply: Reply) -> Any:
        if isinstance(reply, Exception):
            raise self._explained(reply)
        self._proven = True
        return reply

    def _explained(self, error: Exception) -> EventonceError:
        explained = explain(error, self._where, proven=self._proven, wants_tls=self._wants_tls)
        explained.__cause__ = error
        return explained
