"""A relay that passes bytes on after a delay, both ways: it simulates a network on loopback.

`python -m benchmarks.delay PORT SECONDS` prints the port where it listens.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _End(asyncio.Protocol):
    """One end of a connection: the other end sends later what this end receives."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.other: asyncio.WriteTransport | None = None

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        asyncio.get_running_loop().call_later(self._seconds, self.other.write, data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


async def _serve(port: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server, end = await loop.create_connection(lambda: _End(seconds), "127.0.0.1", port)
        end.other = writer.transport
        while data := await reader.read(1 << 20):
            loop.call_later(seconds, to_server.write, data)
        to_server.close()

    server = await asyncio.start_server(join, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


@contextmanager
def delayed(port: int, round_trip: float) -> Iterator[int]:
    """Yield the port of a relay to this port, whose round trips take so many seconds longer."""
    command = [sys.executable, "-m", "benchmarks.delay", str(port), str(round_trip / 2)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
