"""`eventonce forget --conversation` on PostgreSQL: the bytes that it does not reach, and those that
its remedy removes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventonce.config import load
from tests.helpers import Run, reject
from tests.servers.postgres import Cluster

GONE, STAYS = "conv-4711", "conv-4712"


def bytes_of(cluster: Cluster, table: str) -> bytes:
    """The file of a table, as it is on the disk."""
    with cluster.connect() as connection:
        connection.execute("CHECKPOINT")
        ((found,),) = connection.execute(
            "SELECT pg_read_binary_file(pg_relation_filepath(%s))", (table,)
        ).fetchall()
    return bytes(found)


def call(number: int, conversation: str) -> dict[str, Any]:
    detail = {"call": number, "conversationId": conversation}
    return {"id": f"id-{number}", "detail-type": "call", "detail": detail}


def test_deleted_rows_stay_in_free_pages_until_vacuum_full(
    run: Run, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("eventonce.toml").write_text(
        f"store = '{cluster.uri()}'\nname = 'crm'\npresets = []\n[override]\nkeep_result = 0\n"
        "[[rule]]\nname = 'call'\nkey = ['detail.call']\n"
    )
    with load().consumer() as consumer:
        consumer.on()(reject)
        # The deleted row is the second: VACUUM would move another row into the place of the first.
        for event in (call(1, STAYS), call(2, GONE)):
            consumer.process([event])
    done = run("forget", "--conversation", GONE, "--yes")
    assert (done.code, done.err) == (0, "")
    assert "after a VACUUM too; VACUUM FULL records, letters removes them" in done.out
    told = run("forget", "--conversation", GONE, "--dry-run", "--json").documents[0]
    assert "VACUUM FULL records, letters" in told["not_reached"][-1]
    cluster.execute("VACUUM eventonce.records, eventonce.letters")
    assert GONE.encode() in bytes_of(cluster, "eventonce.letters")
    cluster.execute("VACUUM FULL eventonce.records, eventonce.letters")
    left = bytes_of(cluster, "eventonce.letters")
    assert (GONE.encode() in left, STAYS.encode() in left) == (False, True)
