"""/metrics: the text that Prometheus reads, the clients that may read it, and its cost."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from eventonce import Consumer, StoreUnavailable
from eventonce.core.ports import Stats
from eventonce.metrics import gauges, names, prometheus
from eventonce.metrics.gauges import StoreStats
from eventonce.metrics.prometheus import scraping
from eventonce.stores.memory import MemoryStore
from eventonce.web import Serve, receiver
from eventonce.worker.health import listening
from tests.helpers import PATIENCE, call, ruled, until
from tests.unit.asking import ask


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine under load may take longer than a scrape waits for the store."""
    monkeypatch.setattr(gauges, "STATS_WAIT", PATIENCE)


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def consumer(store: Any = "memory:") -> Consumer:
    return Consumer(store, name="crm", rules=ruled(), handler=lambda _: None)


def read(text: str) -> Series:
    """The series of a text, as Prometheus' own parser reads it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def series(found: Series, name: str, **labels: str) -> float:
    return found[name, frozenset({"consumer": "crm", **labels}.items())]


def test_the_text_has_every_metric_of_the_table_with_its_labels() -> None:
    here = consumer()
    scrape = scraping(here, on=True)
    here.process([call(1), call(1), b"no event"])
    here.process([call(at) for at in range(2, 9)])
    answer = scrape()
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    text = answer.body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in names.METRICS:
        family = families.pop(metric.name.removesuffix("_total"))
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == {"consumer", *metric.labels}
    assert not families
    found = read(text)
    events = {"rule": "call", "type": "call"}
    told = {"status": "duplicate", "cause": "same_id"}
    assert series(found, "eventonce_events_total", **told, **events) == 1
    assert series(found, "eventonce_batch_size_bucket", le="2.0") == 0
    assert series(found, "eventonce_batch_size_bucket", le="5.0") == 1
    assert series(found, "eventonce_batch_size_bucket", le="+Inf") == 2
    assert series(found, "eventonce_batch_size_sum") == 10
    assert series(found, "eventonce_batch_size_count") == 2
    assert series(found, "eventonce_in_flight") == 0
    assert series(found, "eventonce_store_keys") == 8
    assert series(found, "eventonce_store_letters") == 1


def test_a_counter_without_events_is_0_where_its_labels_are_known() -> None:
    found = read(scraping(consumer(), on=True)().body.decode())
    assert series(found, "eventonce_takeovers_total") == 0
    for status in ("dead", "conflict", "invalid"):
        assert series(found, "eventonce_dead_letters_total", status=status) == 0
    fenced = {"action": "complete", "result": "fenced"}
    assert series(found, "eventonce_settlements_total", **fenced) == 0


def test_the_text_of_a_sender_cannot_forge_a_metric() -> None:
    here = consumer()
    scrape = scraping(here, on=True)
    forged = 'call"} 1\neventonce_takeovers_total{consumer="crm"} 99\n#'
    here.process([call(1, type=forged)])
    found = read(scrape().body.decode())
    assert series(found, "eventonce_takeovers_total") == 0
    assert [dict(labels)["type"] for name, labels in found if name.endswith("events_total")] == [
        forged
    ]


def test_metrics_contain_neither_the_id_nor_the_values_of_an_event() -> None:
    def fail(_: object) -> None:
        raise ValueError("number 555-0100")

    here = Consumer("memory:", name="crm", rules=ruled(), handler=fail)
    scrape = scraping(here, on=True)
    here.process([call(1, id="id-of-it", caller="555-0100")])
    text = scrape().body.decode()
    assert "ValueError" in text
    assert "555-0100" not in text
    assert "id-of-it" not in text


def test_metrics_that_are_off_add_no_observer_and_answer_404() -> None:
    here = consumer()
    answer = scraping(here, on=False)()
    assert answer.status == 404
    assert b"metrics = false" in answer.body
    assert here.observers == []


def test_metrics_without_the_extra_add_no_observer_and_the_answer_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prometheus, "LIBRARY", "no_such_library")
    here = consumer()
    answer = scraping(here, on=True)()
    assert answer.status == 404
    assert rb"pip install -e \".[metrics]\"" in answer.body
    assert here.observers == []


def test_two_receivers_of_one_consumer_count_an_event_once() -> None:
    here = consumer()
    first, second = scraping(here, on=True), scraping(here, on=True)
    here.process([call(1)])
    assert first().body == second().body
    assert series(read(first().body.decode()), "eventonce_batch_size_count") == 1


def asked(app: Any, path: str = "/metrics", method: str = "GET", **headers: str) -> Any:
    return ask(app, path=path, method=method, headers=headers)


def test_a_receiver_has_metrics() -> None:
    app = receiver(consumer(), Serve(anyone_may_send_events=True, answer_within="1m"))
    assert ask(app, {"id": "1", "detail-type": "call", "detail": {"call": 1}}).status == 200
    answer = asked(app)
    assert answer.status == 200
    assert series(read(answer.body), "eventonce_batch_size_count") == 1
    assert asked(app, method="HEAD").status == 200
    refused = asked(app, method="POST")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


def test_the_metrics_of_a_receiver_with_secrets_need_an_api_key_or_a_password() -> None:
    app = receiver(consumer(), Serve(api_keys=["a-key"], users={"prometheus": "pw"}))
    refused = asked(app)
    assert refused.status == 401
    assert "api_keys or users" in refused.body["reason"]
    assert "Basic" in refused.headers["www-authenticate"]
    assert asked(app, **{"x-api-key": "another"}).status == 401
    assert asked(app, **{"x-api-key": "a-key"}).status == 200
    assert asked(app, authorization="Basic cHJvbWV0aGV1czpwdw==").status == 200
    signed = receiver(consumer(), Serve(github_secrets=["a-secret-of-github-that-is-long"]))
    assert asked(signed).status == 401, "no signature is over a scrape"


def test_a_receiver_whose_metrics_are_off_answers_404() -> None:
    app = receiver(consumer(), Serve(anyone_may_send_events=True, metrics=False))
    answer = asked(app)
    assert answer.status == 404
    assert "metrics = false" in answer.body["reason"]


def test_a_worker_has_metrics_beside_its_health() -> None:
    here = consumer()
    with listening("0", dict, scraping(here, on=True)) as port:
        here.process([call(1)])
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url) as answer:
            found = read(answer.read().decode())
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/else")
    assert series(found, "eventonce_batch_size_count") == 1


def test_the_statistics_of_the_store_are_read_at_most_once_a_minute_and_only_on_request() -> None:
    looks: list[int] = []
    now = 0.0

    def ask() -> Stats:
        looks.append(1)
        return Stats(records=len(looks), letters=0)

    stats = StoreStats(ask, lambda: now)
    assert not looks
    for now, expected in [(0.0, 1), (59.0, 1), (60.0, 2), (61.0, 2), (500.0, 3)]:  # noqa: B007
        latest = stats.latest()
        assert latest is not None
        assert (latest.records, len(looks)) == (expected, expected)


def test_statistics_that_took_long_to_read_are_read_less_often() -> None:
    now = 0.0
    looks: list[float] = []

    def ask() -> Stats:
        nonlocal now
        looks.append(now)
        now += 30.0
        return Stats(records=1, letters=0)

    stats = StoreStats(ask, lambda: now)
    stats.latest()
    now = 30.0 + 20 * 30.0 - 1
    stats.latest()
    assert looks == [0.0]
    now += 1
    stats.latest()
    assert looks == [0.0, 630.0]


def test_a_store_that_is_unavailable_delays_no_scrape_and_removes_no_other_metric(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gauges, "STATS_WAIT", 0.01)
    go = threading.Event()

    class Away(MemoryStore):
        def stats(self) -> Stats:
            waited.append(go.wait(60))
            raise StoreUnavailable("away")

    waited: list[bool] = []
    others = {*threading.enumerate()}
    scrape = scraping(consumer(Away()), on=True)
    text = scrape().body.decode()
    assert not waited, "the scrape has not waited for the store"
    go.set()
    until(lambda: "eventonce-stats" not in [one.name for one in {*threading.enumerate()} - others])
    for said in (text, scrape().body.decode()):
        found = read(said)
        assert series(found, "eventonce_in_flight") == 0
        assert not [name for name, _ in found if name == "eventonce_store_keys"]
