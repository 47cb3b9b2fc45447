"""Sealed dead letters and results in every store that has a server."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import closing

import pytest

from eventonce import Consumer, Job, Reject
from eventonce.stores import open_store
from tests.helpers import call, ruled, statuses
from tests.servers import postgres, valkey
from tests.servers.aws import REGION

KEY = "5e" * 32
SECRET = "+49 30 901820"


@pytest.fixture(params=["redis", "postgres", "dynamodb"])
def uri(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        node: valkey.Node = request.getfixturevalue("node")
        return node.uri
    if request.param == "postgres":
        cluster: postgres.Cluster = request.getfixturevalue("cluster")
        return cluster.uri()
    endpoint: str = request.getfixturevalue("endpoint")
    made = f"dynamodb://sealed-{secrets.token_hex(4)}?region={REGION}&endpoint={endpoint}"
    open_store(made).create()
    return made


def handler(job: Job) -> str:
    if job.event.detail["call"] == 2:
        raise Reject(f"no customer has {SECRET}")
    return SECRET


def test_a_store_has_no_word_of_a_sealed_dead_letter_or_result(uri: str) -> None:
    name = secrets.token_hex(4)
    with Consumer(uri, name=name, rules=[ruled()], handler=handler, sealing_keys=[KEY]) as consumer:
        events = [call(number, caller=SECRET) for number in (1, 2)]
        done, dead = consumer.process(events)
        assert statuses([done, dead]) == ["done", "dead"]
        assert consumer.process(events[:1])[0].result == SECRET
        (letter,) = consumer.letters()
        assert letter.event == events[1]
        assert SECRET in letter.reason
        with closing(open_store(uri)) as store:
            (kept,) = store.letters(name)
            record = store.show(done.key)
        assert SECRET not in f"{kept}{record}"
        assert kept.reason.startswith("sealed with the key ")
        assert record.result.startswith(b"\0eo1")


def test_a_result_in_the_transaction_of_an_async_handler_is_sealed(
    cluster: postgres.Cluster,
) -> None:
    async def written(job: Job) -> str:
        connection = await job.async_connection()
        await connection.execute("CREATE TABLE IF NOT EXISTS sealed_effects (call bigint)")
        return SECRET

    name = secrets.token_hex(4)
    with Consumer(
        cluster.uri(), name=name, rules=[ruled()], handler=written, sealing_keys=[KEY]
    ) as consumer:
        (done,) = asyncio.run(consumer.process_async([call(1)]))
        assert done.status == "done", done.reason
        with closing(open_store(cluster.uri())) as store:
            assert store.show(done.key).result.startswith(b"\0eo1")
        assert consumer.admin.show(done.key).result == b'"+49 30 901820"'  # type: ignore[union-attr]
