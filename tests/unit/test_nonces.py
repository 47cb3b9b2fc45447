"""Nonces: none is drawn twice, by threads, after a fork or after a restored snapshot."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from eventonce.runtime.nonces import DRAWN_TOGETHER, NONCE_LIFE, Nonces, new_nonce
from eventonce.types import MAX_ORDER


def test_threads_draw_no_nonce_twice() -> None:
    drawn = Nonces(3)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: drawn.new(), range(20_000)))
    assert len(set(found)) == len(found)


def test_a_nonce_is_a_number_that_lua_can_hold_and_never_0() -> None:
    assert all(0 < new_nonce() < MAX_ORDER for _ in range(1_000))


def test_the_random_bytes_of_many_nonces_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    urandom = os.urandom

    def counted(size: int) -> bytes:
        asked.append(size)
        return urandom(size)

    monkeypatch.setattr(os, "urandom", counted)
    drawn = Nonces(DRAWN_TOGETHER, clock=lambda: 1_000)
    for _ in range(DRAWN_TOGETHER + 1):
        drawn.new()
    assert asked == [7 * DRAWN_TOGETHER] * 2


@pytest.mark.parametrize("later", [NONCE_LIFE, -1])
def test_processes_restored_from_one_snapshot_draw_different_nonces(later: int) -> None:
    """The clock was put forward or back since the snapshot."""
    now = [NONCE_LIFE * 100]
    drawn = Nonces(DRAWN_TOGETHER, clock=lambda: now[0])
    drawn.new()
    now[0] += later
    restored = [copy.deepcopy(drawn) for _ in range(2)]
    first, second = ({one.new() for _ in range(DRAWN_TOGETHER - 1)} for one in restored)
    assert not first & second


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_parent_and_child_of_a_fork_draw_different_nonces() -> None:
    new_nonce()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, " ".join(str(new_nonce()) for _ in range(DRAWN_TOGETHER)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = {int(one) for one in os.read(reading, 10_000).split()}
    os.close(reading)
    os.close(writing)
    assert len(theirs) == DRAWN_TOGETHER
    assert not theirs & {new_nonce() for _ in range(DRAWN_TOGETHER)}


def test_lambda_draws_one_nonce_at_a_time() -> None:
    code = "from eventonce.runtime.nonces import _here; _here.new(); print(len(_here._spare))"
    for given, spare in ((os.environ, DRAWN_TOGETHER - 1), ({"AWS_LAMBDA_FUNCTION_NAME": "f"}, 0)):
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **given},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(ended.stdout) == spare
