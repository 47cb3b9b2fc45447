"""From a bus through a rule, SQS and the worker with Redis into a sink: each effect once.

ministack stands for AWS, Valkey for Redis; the worker is `eventonce run` in processes of its own,
one of which is killed in the middle of a handler.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.end_to_end import (
    BUS,
    HANDLER,
    SOURCE,
    Account,
    account,
    apply,
    call,
    wait_for,
)
from tests.servers import valkey

QUEUE = "desk"
VISIBILITY = 2
"""Seconds, of the queue and of the lease: what a dead worker held is waited for as long."""

CONFIG = """
name = "desk"
store = "{store}"
rules = "genesys"

[override]
lease = "{visibility}s"

[worker]
queue = "sqs://desk"
visibility = "{visibility}s"
wait = "1s"

[[sink]]
to = "handling:handle"

[infra]
bus = "{bus}"
source = "{source}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with valkey.serving() as server:
        config = CONFIG.format(store=server.uri, bus=BUS, source=SOURCE, visibility=VISIBILITY)
        (tmp_path / "eventonce.toml").write_text(config)
        (tmp_path / "handling.py").write_text(HANDLER)
        yield tmp_path


@pytest.fixture
def world(folder: Path) -> Iterator[Account]:
    with account() as made:
        config = folder / "eventonce.toml"
        assert apply(config)["steps"]
        assert apply(config)["steps"] == []
        # Two overlapping rules: every event comes twice, with the same id.
        assert apply(config, "--rule", "desk-too")["steps"]
        made.archive()
        yield made


@contextmanager
def working(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, until the block is left; asked politely it ends what it has begun."""
    with (folder / "worker.log").open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "eventonce", "run", "--config", "eventonce.toml"],
            cwd=folder,
            env={**os.environ, "FOLDER": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield worker
        finally:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
            worker.wait(60)


def test_each_effect_once_whatever_goes_wrong_on_the_way(world: Account, folder: Path) -> None:
    plain = [f"plain-{number}" for number in range(5)]
    expected = dict.fromkeys([*plain, "fails", "hangs", "lasts"], 1)
    with working(folder) as first:
        # None that sends at once: killed between that and its settlement it would send again.
        world.put(call("hangs", do="hang once"), call("fails", do="fail twice"))
        wait_for((folder / "hanging").exists, "a handler to hang")
        first.kill()
        first.wait()
    with working(folder) as second:
        lasts = call("lasts", do="take long", seconds=1.5 * VISIBILITY)
        world.put(*map(call, plain), lasts)
        world.drained(QUEUE)
        assert world.counted() == expected, (folder / "worker.log").read_text()

        # Every copy that can come afterwards: published again, delivered again, replayed.
        world.put(*map(call, plain))
        world.redeliver(QUEUE, world.effects())
        world.replay()
        world.drained(QUEUE)
    assert second.returncode == 0
    said = (folder / "worker.log").read_text()
    assert world.counted() == expected, said
    # They did come: what was put again and all that was archived by both rules, the rest directly.
    copies = 2 * (len(plain) + len(plain) + len(expected)) + len(expected)
    assert int(re.findall(r"^  duplicate +(\d+)$", said, re.MULTILINE)[-1]) >= copies, said
