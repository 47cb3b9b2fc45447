"""The same app on the servers that it could use: processor time a request, compared.

The decision `docs/decisions/0015-uvicorn-with-httptools-and-uvloop.md` uses these figures.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from statistics import median
from typing import Any

import uvicorn

from benchmarks import Figure
from benchmarks.receiver import BARE, apart, application, flat_out, posts, processor_time
from tests.servers import free_port

SECONDS = 2.0
ROUNDS = 3
"""Rounds of all servers in turn; the median counts, because the load of the machine changes."""

SERVERS = (
    "uvicorn h11 asyncio",
    "uvicorn h11 uvloop",
    "uvicorn httptools asyncio",
    "uvicorn httptools uvloop",
    "granian asgi asyncio",
    "granian asgi uvloop",
)
APPS = {"bare Starlette": BARE, "receiver on memory": "memory:"}


def _serve(server: str, store: str, port: int) -> None:
    """Serve in the other process."""
    name, kind, loop = server.split()
    app = application(store)
    if name == "uvicorn":
        config: dict[str, Any] = {"http": kind, "loop": loop, "lifespan": "off"}
        uvicorn.run(app, port=port, log_config=None, access_log=False, **config)
        return
    import uvloop  # noqa: PLC0415  it may not be installed
    from granian.constants import Interfaces  # noqa: PLC0415  likewise
    from granian.server.embed import Server  # noqa: PLC0415  likewise

    granian = Server(
        app, port=port, interface=Interfaces(kind), log_enabled=False, websockets=False
    )
    (uvloop.run if loop == "uvloop" else asyncio.run)(granian.serve())


async def _up(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


def _measured(server: str, store: str) -> float:
    """Return the processor seconds a request."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.servers", server, store, str(port)]
    process = subprocess.Popen(command)
    try:
        asyncio.run(_up(port))
        with apart(process.pid):
            made = posts(1)
            asyncio.run(flat_out(port, made, SECONDS / 3))
            before, started = processor_time(process.pid), time.perf_counter()
            rate = asyncio.run(flat_out(port, made, SECONDS))
            count = rate * (time.perf_counter() - started)
            return (processor_time(process.pid) - before) / count
    finally:
        process.kill()
        process.wait()


def run() -> Iterator[Figure]:
    """Yield the figures of each app on each server, if the system tells processor time."""
    if not os.path.exists("/proc/self/stat"):  # noqa: PTH110  as short as with a Path
        return
    servers = [one for one in SERVERS if find_spec(one.split()[0]) and _loop(one)]
    for app, store in APPS.items():
        found: dict[str, list[float]] = {server: [] for server in servers}
        for _ in range(ROUNDS):
            for server in servers:
                found[server].append(_measured(server, store))
        for server, times in found.items():
            yield Figure(f"{app}, {server}", median(times) * 1e6, "µs a request")


def _loop(server: str) -> bool:
    loop = server.split()[2]
    return loop == "asyncio" or find_spec(loop) is not None


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
