"""The HTTP receiver on one core: requests a second, and the latency at half that load.

The receiver is a separate process, pinned to one core if possible; the load comes from this
process, on another core, over connections that stay open. Each figure is compared with a bare
Starlette endpoint that only decodes the body, served the same way.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks import Figure
from benchmarks.yardstick import EVENT
from eventonce import Consumer
from eventonce.config import Serve
from eventonce.web import receiver
from eventonce.web.admission import limits
from eventonce.web.server import listen, serve
from tests.servers.valkey import serving

SECONDS = 4.0
"""Seconds of each measurement, after a warm-up."""
CONNECTIONS = 16
ARRAY = 100
MANY = 256
"""Connections of an overload: four times as many as the receiver serves at once."""
OVERLOAD = 4
BARE = "bare"
ROUNDS = 5
TURNS = 5
"""Rounds in which the bare endpoint and the receivers take turns: the speed of the machine changes
from one minute to the next, so only figures of one round are compared. Medians count."""

Bodies = Iterator[bytes]


def _single(number: int) -> bytes:
    """Return an event of now with its own transport id: keys begin with the time of their event,
    and a store that sorts by key is slow if all events of minutes have the same time."""
    now, own = b"%d" % (time.time_ns() // 1_000_000), b"%08x" % number
    session = EVENT.replace(b"1b8e4c38", own)
    return session.replace(b"6a7e8feb", own).replace(b"1777886127391", now)


def posts(size: int) -> Bodies:
    """Yield requests with so many new events; one event is sent bare, more as an array."""
    numbers = itertools.count(time.time_ns() & 0x7FFFFF)
    while True:
        events = [_single(next(numbers)) for _ in range(size)]
        body = events[0] if size == 1 else b"[" + b",".join(events) + b"]"
        head = "POST /events HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        yield f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class _Line(asyncio.Protocol):
    """One connection: one request at a time, and the seconds from its due time to its answer."""

    def __init__(self, answered: Callable[[_Line, float], None]) -> None:
        self._answered = answered
        self._due = 0.0
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def ask(self, request: bytes, due: float) -> None:
        self._due, self._said = due, b""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._said += data
        head, found, body = self._said.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(self._said[:500].decode())
            self._answered(self, time.perf_counter() - self._due)


async def _lines(port: int, answered: Callable[[_Line, float], None]) -> list[_Line]:
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: _Line(answered), "127.0.0.1", port)
        for _ in range(CONNECTIONS)
    ]
    return [line for _, line in made]


async def flat_out(port: int, requests: Bodies, seconds: float) -> float:
    """Return the requests a second if each connection sends as soon as it is answered."""
    count = 0
    ended = asyncio.Event()
    end = time.perf_counter() + seconds

    def answered(line: _Line, _: float) -> None:
        nonlocal count
        count += 1
        now = time.perf_counter()
        if now < end:
            line.ask(next(requests), now)
        else:
            ended.set()

    lines = await _lines(port, answered)
    started = time.perf_counter()
    for line in lines:
        line.ask(next(requests), started)
    await ended.wait()
    spent = time.perf_counter() - started
    for line in lines:
        line.transport.abort()
    return count / spent


async def _at_rate(port: int, requests: Bodies, rate: float, seconds: float) -> list[float]:
    """Return the latencies of requests at an even rate, independent of earlier answers."""
    made = [next(requests) for _ in range(max(1, int(rate * seconds)))]
    latencies: list[float] = []
    ended = asyncio.Event()
    free: deque[_Line] = deque()
    waiting: deque[tuple[bytes, float]] = deque()

    def answered(line: _Line, latency: float) -> None:
        latencies.append(latency)
        if len(latencies) == len(made):
            ended.set()
        free.append(line)
        go()

    def go() -> None:
        while free and waiting:
            free.popleft().ask(*waiting.popleft())

    lines = await _lines(port, answered)
    free.extend(lines)
    started = time.perf_counter()
    for number, request in enumerate(made):
        due = started + number / rate
        # The loop's timer is no finer than a millisecond: the rest is a busy wait.
        await asyncio.sleep(max(0, due - time.perf_counter() - 0.001))
        while time.perf_counter() < due:  # noqa: ASYNC110  answers are read meanwhile
            await asyncio.sleep(0)
        waiting.append((request, due))
        go()
    await ended.wait()
    for line in lines:
        line.transport.abort()
    return sorted(latencies)


class _Patient(asyncio.Protocol):
    """One connection of many: it counts accepted requests, and ignores refused ones."""

    def __init__(self, free: deque[_Patient]) -> None:
        self.taken = 0
        self._free = free
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self._free.append(self)

    def ask(self, request: bytes) -> None:
        self._said = b""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._said += data
        head, found, body = self._said.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if found and len(body) >= int(length):
            self.taken += head.startswith(b"HTTP/1.1 200")
            self._free.append(self)


async def _overload(
    port: int, pid: int, requests: Bodies, rate: float, seconds: float
) -> tuple[int, float]:
    """Return the accepted requests at this rate over many connections, and the processor seconds of
    the server; a request without a free connection is not sent."""
    loop = asyncio.get_running_loop()
    free: deque[_Patient] = deque()
    lines = [
        (await loop.create_connection(lambda: _Patient(free), "127.0.0.1", port))[1]
        for _ in range(MANY)
    ]
    made = [next(requests) for _ in range(int(rate * seconds))]
    before = processor_time(pid)
    started = time.perf_counter()
    for number, request in enumerate(made):
        while time.perf_counter() < started + number / rate:  # noqa: ASYNC110  as above
            await asyncio.sleep(0)
        if not number % CONNECTIONS:
            await asyncio.sleep(0)
        if free:
            free.popleft().ask(request)
    used = processor_time(pid) - before
    for line in lines:
        line.transport.abort()
    return sum(line.taken for line in lines), used


async def _decoded(request: Request) -> JSONResponse:
    events = json.loads(await request.body())
    return JSONResponse({"events": len(events)})


def application(store: str) -> Any:
    """Return the bare endpoint, or a receiver on this store."""
    if store == BARE:
        return Starlette(routes=[Route("/events", _decoded, methods=["POST"])])
    consumer = Consumer(store, name="bench", rules="genesys", handler=lambda _: None)
    # The cost of metrics has its own benchmark.
    return receiver(consumer, Serve(anyone_may_send_events=True, metrics=False))


def _serve(store: str) -> None:
    """Serve in the other process."""
    settings = Serve(port=0)
    listening = listen(settings)
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    serve(application(store), listening, limits(settings))


@contextmanager
def _served(store: str) -> Iterator[tuple[int, int]]:
    """Start a receiver on this store in a separate process; yield its port and process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.receiver", store], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with apart(process.pid):
            yield port, process.pid
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def apart(pid: int) -> Iterator[None]:
    """Pin the server to one core and this process to the others, if the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    first, others = min(cores), cores - {min(cores)} or cores
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {first})
    os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def processor_time(pid: int) -> float:
    """Return the processor seconds of this process; 0 if the system does not tell."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    # The name may contain spaces; user and system time are the 14th and 15th field.
    used = stat.read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """The figures of one variant."""

    rate: float
    cpu: float
    slowest: float
    overloaded: float
    """Events per processor second under overload, as a share of those at capacity."""


def _measured(store: str, size: int) -> Measured:
    """Return requests a second, processor time of each, and the 99th percentile of the latency at
    half of that rate: the median of some rounds, because other load shows there first."""
    with _served(store) as (port, pid):
        requests = posts(size)
        asyncio.run(flat_out(port, requests, SECONDS / 3))
        before = processor_time(pid)
        rate = asyncio.run(flat_out(port, requests, SECONDS))
        cpu = (processor_time(pid) - before) / (rate * SECONDS)
        rounds = [
            asyncio.run(_at_rate(port, requests, rate / 2, SECONDS / ROUNDS)) for _ in range(ROUNDS)
        ]
        taken, used = asyncio.run(_overload(port, pid, requests, rate * OVERLOAD, SECONDS))
        overloaded = cpu * taken / used if used else 0.0
    slowest = median(latencies[int(len(latencies) * 0.99)] for latencies in rounds)
    return Measured(rate, cpu, slowest, overloaded)


REACH = {("SQLite", 1): 0.6, ("Redis", 1): 0.6, ("SQLite", ARRAY): 0.4}
"""The least share of the bare endpoint's speed."""


def _shares(stores: Mapping[str, str], size: int) -> dict[str, float]:
    """Return the speed of a receiver on each of these stores, as a share of the bare endpoint's."""
    shares: dict[str, list[float]] = {name: [] for name in stores}
    for turn in range(TURNS):
        bare = _capacity(BARE, size)
        for name, store in stores.items():
            shares[name].append(bare / _capacity(store.format(turn=turn), size))
    return {name: median(found) for name, found in shares.items()}


def _capacity(store: str, size: int) -> float:
    """Return the processor seconds of a request at capacity; the seconds, if the system does not
    tell."""
    with _served(store) as (port, pid):
        requests = posts(size)
        asyncio.run(flat_out(port, requests, SECONDS / 4))
        before = processor_time(pid)
        rate = asyncio.run(flat_out(port, requests, SECONDS / 2))
        return (processor_time(pid) - before) / (rate * SECONDS / 2) or 1 / rate


def _figures(name: str, size: int, found: Measured, share: float | None) -> Iterator[Figure]:
    what = f"{name}, {'single events' if size == 1 else f'arrays of {size}'}"
    yield Figure(what, found.rate, "requests/s")
    if size > 1:
        yield Figure(f"{what}: events", found.rate * size, "events/s")
    yield Figure(f"{what}: 99th percentile, half load", found.slowest * 1000, "ms")
    if found.cpu:
        yield Figure(f"{what}: processor time", found.cpu * 1e6, "µs a request")
    if share is None:
        return
    if size == 1:
        work = f"{what}: work done at {OVERLOAD} times the load"
        yield Figure(work, found.overloaded, "x", at_least=0.9 if found.overloaded else None)
    least = REACH.get((name, size))
    yield Figure(f"{what}: of a bare endpoint's speed", share, "x", at_least=least)


def run() -> Iterator[Figure]:
    """Yield the figures of each store with single events and arrays, and of the bare endpoint."""
    with tempfile.TemporaryDirectory() as folder, serving() as node:
        for size in (1, ARRAY):
            yield from _figures("bare Starlette", size, _measured(BARE, size), None)
            stores = {
                "SQLite": f"sqlite:///{folder}/{size}-{{turn}}.db",
                "Redis": f"{node.uri}?prefix=bench-{size}-{{turn}}",
            }
            shares = _shares(stores, size)
            for name, store in stores.items():
                found = _measured(store.format(turn="last"), size)
                yield from _figures(name, size, found, shares[name])


if __name__ == "__main__":
    _serve(sys.argv[1])
