"""One store object in many threads, and on both sides of a fork."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from eventonce.stores.dynamodb import DynamoDBStore
from tests.integration.dynamodb.asks import completed, copies, facts
from tests.servers.aws import REGION

FORKED = """
    import os, sys, threading, boto3
    from eventonce.stores.dynamodb import DynamoDBStore
    from tests.integration.dynamodb.asks import completed, copies, facts
    from tests.helpers import PATIENCE

    table, endpoint, own = sys.argv[1:]
    if own == "own":
        store = DynamoDBStore(boto3.client("dynamodb", endpoint_url=endpoint), table)
    else:
        store = DynamoDBStore.from_uri(f"dynamodb://{table}?endpoint={endpoint}&timeout={PATIENCE}")

    def work(rounds):
        for _ in range(rounds):
            claims = facts(30)
            runs = store.claim(claims)
            assert [run.kind for run in runs] == ["run"] * 30
            assert store.settle(completed(claims, runs)) == ["kept"] * 30
            assert {it.kind for it in store.claim(copies(claims))} == {"duplicate"}

    work(1)
    before = facts(3)
    runs = store.claim(before)
    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            try:
                assert {it.kind for it in store.claim(copies(before))} == {"busy"}
                work(3)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    work(3)
    # Before the settlement: a child that begins late would find duplicates.
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert store.settle(completed(before, runs)) == ["kept"] * 3
"""


# Each client once: a fork copies the client, and the server does not see it.
@pytest.mark.parametrize(
    ("endpoint", "whose"),
    [("on_ministack", "made"), ("by_botocore", "made"), ("on_dynamodb_local", "own")],
    indirect=["endpoint"],
)
def test_a_store_works_on_in_parent_and_children_after_a_fork(
    whose: str, table: str, endpoint: str
) -> None:
    """No connection and no thread from before the fork is used by two processes."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED), table, endpoint, whose],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_many_threads_share_a_store(table: str, endpoint: str) -> None:
    store = DynamoDBStore.from_uri(f"dynamodb://{table}?region={REGION}&endpoint={endpoint}")
    shared = facts(40)

    def work(_: int) -> list[str]:
        mine = facts(10)
        assert store.settle(completed(mine, store.claim(mine))) == ["kept"] * 10
        return [it.kind for it in store.claim(copies(shared))]

    with ThreadPoolExecutor(8) as pool:
        kinds = [kind for told in pool.map(work, range(16)) for kind in told]
    assert sorted(set(kinds)) == ["busy", "run"]
    assert kinds.count("run") == len(shared)
