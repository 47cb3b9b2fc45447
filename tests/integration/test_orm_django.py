"""Django over `job.connection`: models, savepoints, and calls that would end the transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import IntegrityError, connection, connections, models, transaction

from eventonce import Consumer, Job, Rule
from eventonce.errors import ConfigError
from eventonce.testing.cases.samples import new_keys
from eventonce.types import Outcome
from tests.integration.granted import opened
from tests.servers.postgres import Cluster, serving

RULE = Rule(name="call", match="*", key=["detail.call"])
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)

settings.configure(
    USE_TZ=True,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "postgres",
            "HOST": "127.0.0.1",
        }
    },
)
django.setup()

from eventonce.orm.django import atomic  # noqa: E402  Django wants its settings first


class Call(models.Model):  # type: ignore[misc]
    call = models.IntegerField(unique=True)
    at = models.DateTimeField()
    parts = models.JSONField()

    class Meta:
        app_label = "calls"

    def __str__(self) -> str:
        return str(self.call)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose time zone differs from Django's."""
    with serving() as cluster, opened(cluster):
        cluster.execute("ALTER DATABASE postgres SET timezone = 'America/New_York'")
        connections.settings["default"]["PORT"] = cluster.port
        with connection.schema_editor() as editor:
            editor.create_model(Call)
        yield cluster
        connections.close_all()


@pytest.fixture(autouse=True)
def empty(cluster: Cluster) -> None:
    Call.objects.all().delete()


def made(number: int) -> Any:
    return Call.objects.create(call=number, at=NOON, parts={"of": [number]})


def processed(uri: str, handler: Callable[[Job], object], *numbers: int) -> list[Outcome]:
    events = [{"id": "", "detail-type": "call", "detail": {"call": it}} for it in numbers]
    name = new_keys(1)[0].hex()
    with Consumer(uri, name=name, rules=RULE, handler=handler) as consumer:
        return consumer.process(events)


def kept() -> list[int]:
    """The stored calls, read by Django's own connection."""
    return sorted(Call.objects.values_list("call", flat=True))


def test_the_writes_of_models_commit_with_the_completion(cluster: Cluster) -> None:
    own = connection.connection

    def handler(job: Job) -> None:
        with atomic(job):
            made(job.event.detail["call"])
            assert connection.connection is not own
        assert connection.connection is own
        assert kept() == []
        if job.event.detail["call"] == 2:
            raise ValueError("after its block")

    assert [it.status for it in processed(cluster.uri(), handler, 1)] == ["done"]
    assert kept() == [1]
    Call.objects.all().delete()
    assert [it.status for it in processed(cluster.uri(), handler, 2)] == ["failed"]
    assert kept() == []


def test_values_are_read_with_the_time_zone_and_the_json_decoder_of_django(
    cluster: Cluster,
) -> None:
    """The statements of the handler outside the block keep the settings of its connection."""
    read: list[object] = []

    def handler(job: Job) -> None:
        (before,) = job.connection.execute("SHOW timezone").fetchone()
        with atomic(job):
            made(1)
            (row,) = Call.objects.iterator()
            read.append((row.at, row.parts))
        assert job.connection.execute("SHOW timezone").fetchone() == (before,)
        assert job.connection.execute("""SELECT '{"a": 1}'::jsonb""").fetchone() == ({"a": 1},)

    assert [it.status for it in processed(cluster.uri(), handler, 1)] == ["done"]
    assert read == [(NOON, {"of": [1]})]
    assert Call.objects.get().at == NOON


def test_nested_blocks_are_savepoints(cluster: Cluster) -> None:
    def raise_inside(job: Job) -> None:
        with atomic(job):
            made(3)
            raise ZeroDivisionError

    def handler(job: Job) -> None:
        with atomic(job):
            made(1)
            with pytest.raises(IntegrityError), transaction.atomic():
                made(1)
            made(2)
        with pytest.raises(ZeroDivisionError):
            raise_inside(job)

    assert [it.status for it in processed(cluster.uri(), handler, 1)] == ["done"]
    assert kept() == [1, 2]


def close() -> None:
    connection.close()


def durable() -> None:
    with transaction.atomic(durable=True):
        made(2)


@pytest.mark.parametrize(
    "ends",
    [
        transaction.commit,
        transaction.rollback,
        close,
        durable,
        lambda: transaction.set_autocommit(True),
        lambda: transaction.on_commit(lambda: None),
    ],
)
def test_a_call_that_ends_the_transaction_or_waits_for_its_end_fails_the_run(
    cluster: Cluster, ends: Callable[[], None]
) -> None:
    def handler(job: Job) -> None:
        with atomic(job):
            made(1)
            ends()

    assert [it.status for it in processed(cluster.uri(), handler, 1)] == ["failed"]
    assert kept() == []


def test_a_store_other_than_postgresql_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    def handler(job: Job) -> None:
        with atomic(job):
            made(1)

    (outcome,) = processed(f"sqlite:///{tmp_path / 'events.db'}", handler, 1)
    assert isinstance(outcome.error, ConfigError)
    assert kept() == []
