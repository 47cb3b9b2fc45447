"""From a bus through a rule, SQS and the worker with Redis into a sink: each effect once.

ministack replaces AWS, Valkey replaces Redis; the worker is `eventonce run` in processes of its
own, one of which is killed in the middle of a handler.
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

from tests.helpers import PATIENCE, until
from tests.integration.end_to_end import BUS, HANDLER, SOURCE, Account, account, apply, call
from tests.servers import valkey

QUEUE = "site"
VISIBILITY = 2
"""Seconds, of the queue and of the lease: the test waits that long for a dead worker's events."""

TRIES = 3

CONFIG = """
name = "site"
store = "{store}"
presets = ["genesys"]

[override]
lease = "{visibility}s"

[worker]
queue = "sqs://site"
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
        store = f"{server.uri}?timeout={PATIENCE}"
        config = CONFIG.format(store=store, bus=BUS, source=SOURCE, visibility=VISIBILITY)
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
        other = made.rule("site-too", QUEUE)
        assert apply(config, "--parameter", f"OtherRuleArns={other}")["steps"]
        made.archive()
        yield made


@contextmanager
def working(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, until the block is left; after SIGTERM it ends the events that it has begun."""
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
            worker.wait(PATIENCE)


def lasted(world: Account, folder: Path) -> list[str]:
    """Put calls that take longer than their lease until one of them had its effect once; return
    their names. A machine that stands still for as long as the lease lets a call run twice."""
    names: list[str] = []
    while len(names) < TRIES:
        names.append(f"lasts-{len(names)}")
        world.put(call(names[-1], do="take long", seconds=1.5 * VISIBILITY))
        world.drained(QUEUE)
        if world.counted()[names[-1]] == 1:
            return names
    raise AssertionError(log_of(folder))


def test_each_effect_happens_once_in_spite_of_failures_and_copies(
    world: Account, folder: Path
) -> None:
    plain = [f"plain-{number}" for number in range(5)]
    with working(folder) as first:
        # No call that sends at once: a worker killed before its settlement would send again.
        world.put(call("hangs", do="hang once"), call("fails", do="fail twice"))
        until((folder / "hanging").exists)
        first.kill()
        first.wait()
    with working(folder) as second:
        world.put(*map(call, plain))
        lasting = lasted(world, folder)
        before = world.counted()
        once = [*plain, "fails", "hangs", lasting[-1]]
        assert {name: before[name] for name in once} == dict.fromkeys(once, 1), log_of(folder)
        assert before.keys() == {*once, *lasting}

        # Every copy that can come afterwards: published again, delivered again, replayed.
        world.put(*map(call, plain))
        world.redeliver(QUEUE, world.effects())
        world.replay()
        world.drained(QUEUE)
    assert second.returncode == 0
    assert world.counted() == before, log_of(folder)
    # All copies came: the calls put again and the archive by both rules, the others directly.
    copies = 2 * (len(plain) + len(plain) + len(before)) + len(before)
    duplicates = re.findall(r"^  duplicate +(\d+)$", log_of(folder), re.MULTILINE)
    assert int(duplicates[-1]) >= copies, log_of(folder)


def log_of(folder: Path) -> str:
    """The log of the workers."""
    return (folder / "worker.log").read_text()
