"""The receiver as an app: its answer to every outcome of an event."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from eventonce import Consumer, Reject, Retry, StoreMismatch, StoreUnavailable, log
from eventonce.errors import ConfigError, SourceUnavailable
from eventonce.web import Serve, health, receiver
from tests.helpers import WatchedStore, away, full
from tests.unit.asking import JSON, ask
from tests.unit.endpoint import OPEN, PATIENT, Endpoint, call

SECRET = "hunter2 at redis://10.0.0.7"


def agent(version: int, *, on: bool, at: int = 1_700_000_000) -> dict[str, Any]:
    detail = {"agent": "a", "version": version, "on": on, "at": at}
    return {"id": str(version), "detail-type": "agent", "source": "s", "detail": detail}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between settlements: a store that is unavailable here stays unavailable."""
    monkeypatch.setattr("eventonce.runtime.runtime.SETTLE_PAUSES", (0.0,))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long wait for the store: on a busy machine its answer may take long."""
    monkeypatch.setattr(health, "STORE_WAIT", 60.0)


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes between an outcome and its answer."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_764_000_000_000_000_000)


def test_a_new_event_is_done_and_every_kind_of_copy_is_a_success_too(endpoint: Endpoint) -> None:
    for body, status, reason in [
        (call("a"), "done", ""),
        (call("a"), "duplicate", "the same transport id"),
        (call("a") | {"id": "other"}, "duplicate", "another transport id"),
        (agent(5, on=True), "done", ""),
        (agent(4, on=False), "stale", "version 4 is older than 5"),
        (agent(6, on=True), "unchanged", "the state of version"),
        ({"detail-type": "x", "id": "1", "detail": {}}, "done", ""),
    ]:
        answer = ask(endpoint.app, body)
        assert (answer.status, answer.statuses) == (200, [status])
        assert reason in answer.reasons[0]
        assert "retry-after" not in answer.headers
    assert endpoint.ran == ["a", "state", "state"]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b'[{"detail-type":"call","id":"1","detail":{"call":"a"}},%s]'),
        ("application/json; charset=utf-8", b'{"detail-type":"call","detail":{"call":"a"}}\n%s'),
        ("application/x-ndjson", b'{"detail-type":"call","detail":{"call":"a"}}\r\n\r\n%s\n'),
        (
            "application/cloudevents-batch+json",
            b'[{"detail-type":"call","detail":{"call":"a"}},%s]',
        ),
    ],
)
def test_an_array_and_json_lines_are_split_into_events(
    endpoint: Endpoint, content_type: str, body: bytes
) -> None:
    second = b'{"detail-type":"call","detail":{"call":"b"}}'
    answer = ask(endpoint.app, body % second, headers={"content-type": content_type})
    assert (answer.status, answer.statuses) == (200, ["done", "done"])
    assert answer.body["processed"] == 2
    assert endpoint.ran == ["a", "b"]


def test_a_cloudevent_in_binary_mode_goes_to_the_handler_of_its_type() -> None:
    ran: list[Any] = []
    with Consumer("memory:") as consumer:
        consumer.on("call.ended")(lambda job: ran.append(job.event.detail))
        app = receiver(consumer, OPEN)
        said = {"ce-specversion": "1.0", "ce-source": "/calls", "ce-type": "call.ended"}
        for id_, status in (("A-1", "done"), ("A-1", "duplicate"), ("A-2", "done")):
            answer = ask(app, {"call": 7, "type": "voice"}, headers=JSON | said | {"ce-id": id_})
            assert (answer.status, answer.statuses) == (200, [status])
            assert answer.body["events"][0]["id"] == id_
    assert ran == [{"call": 7, "type": "voice"}] * 2


def test_an_invalid_body_is_400_with_the_reason_and_becomes_a_dead_letter(
    endpoint: Endpoint,
) -> None:
    answer = ask(endpoint.app, b'{"detail-type":')
    assert (answer.status, answer.statuses) == (400, ["invalid"])
    assert "not JSON at byte" in answer.reasons[0]
    assert endpoint.letters() == [b'{"detail-type":']


def test_an_incomplete_key_is_400_and_names_the_part(endpoint: Endpoint) -> None:
    answer = ask(endpoint.app, {"detail-type": "call", "detail": {}})
    assert (answer.status, answer.statuses) == (400, ["invalid"])
    assert "detail.call" in answer.reasons[0]


@pytest.mark.parametrize(
    ("content_type", "between", "around"),
    [("application/json", b",", b"[%s]"), ("application/x-ndjson", b"\n", b"%s")],
)
def test_a_bad_element_or_line_becomes_a_dead_letter_and_the_other_events_run(
    endpoint: Endpoint, content_type: str, between: bytes, around: bytes
) -> None:
    good = [b'{"detail-type":"call","detail":{"call":"%c"}}' % name for name in b"ab"]
    bad = b'"not an event"' if between == b"," else b'{"detail-type":'
    body = around % between.join([good[0], bad, good[1]])
    answer = ask(endpoint.app, body, headers={"content-type": content_type})
    assert (answer.status, answer.statuses) == (200, ["done", "invalid", "done"])
    assert endpoint.ran == ["a", "b"]
    assert endpoint.letters() == [bad]


@pytest.mark.usefixtures("still")
def test_one_failed_event_of_an_array_makes_the_sender_send_the_whole_array_again(
    endpoint: Endpoint,
) -> None:
    endpoint.failing["b"] = Retry(after=7)
    body = [call("a"), call("b"), 3, call("c")]
    answer = ask(endpoint.app, body)
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert answer.statuses == ["done", "failed", "invalid", "done"]
    endpoint.failing.clear()
    answer = ask(endpoint.app, body)
    assert (answer.status, answer.statuses) == (200, ["duplicate", "done", "invalid", "duplicate"])
    assert endpoint.ran == ["a", "c", "b"]
    assert endpoint.letters() == [b"3"]


def test_an_event_that_another_run_holds_is_429_until_the_lease_ends(endpoint: Endpoint) -> None:
    with endpoint.consumer.once(call("a")):
        answer = ask(endpoint.app, [call("a"), call("b")])
    assert (answer.status, answer.statuses) == (429, ["busy", "done"])
    assert 1 < int(answer.headers["retry-after"]) <= 60


@pytest.mark.usefixtures("still")
def test_a_failure_counts_more_than_a_busy_event_and_the_longest_wait_is_answered(
    endpoint: Endpoint,
) -> None:
    endpoint.failing["b"] = Retry(after=300)
    with endpoint.consumer.once(call("a")):
        answer = ask(endpoint.app, [call("a"), call("b")])
    assert (answer.status, answer.statuses) == (503, ["busy", "failed"])
    assert answer.headers["retry-after"] == "300"


def test_a_given_up_event_is_a_success_and_a_conflict_is_422(endpoint: Endpoint) -> None:
    endpoint.failing["a"] = Reject("never")
    answer = ask(endpoint.app, call("a"))
    assert (answer.status, answer.statuses) == (200, ["dead"])
    assert ask(endpoint.app, call("b", amount=1)).statuses == ["done"]
    answer = ask(endpoint.app, call("b", amount=2))
    assert (answer.status, answer.statuses) == (422, ["conflict"])
    assert len(endpoint.letters()) == 2


def test_an_empty_array_is_accepted(endpoint: Endpoint) -> None:
    answer = ask(endpoint.app, [])
    assert (answer.status, answer.body["events"]) == (200, [])


unreached = partial(away, error=StoreUnavailable(SECRET))
"""A failure of the store whose text contains a secret."""


@pytest.mark.parametrize("verb", ["claim", "settle"])
def test_an_unavailable_store_is_503_with_retry_after(verb: str) -> None:
    endpoint = Endpoint(WatchedStore(unreached(verb)))
    answer = ask(endpoint.app, call("a"))
    assert (answer.status, answer.statuses) == (503, ["failed"])
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.reasons == ["the store is away"]


def test_an_event_whose_dead_letter_cannot_be_kept_is_503() -> None:
    answer = ask(Endpoint(WatchedStore(unreached("put_letters"))).app, b"3")
    assert (answer.status, answer.statuses) == (503, ["failed"])


def test_an_answer_has_neither_the_text_of_an_exception_nor_the_address_of_the_store() -> None:
    endpoint = Endpoint()
    answers = []
    for error in (ValueError(SECRET), Retry(SECRET), Reject(SECRET), StoreUnavailable(SECRET)):
        endpoint.failing["a"] = error
        answers += [ask(endpoint.app, [call("a"), call("a")]) for _ in range(3)]
    for verb in ("claim", "settle", "put_letters"):
        for policy in ("retry", "run"):
            away = Endpoint(WatchedStore(unreached(verb)), on_store_error=policy)
            answers.append(ask(away.app, [call("a"), call("b"), 3]))
    seen = {status for answer in answers for status in answer.statuses}
    assert seen == {"failed", "dead", "busy", "unguarded", "done", "invalid"}
    for answer in answers:
        assert "hunter2" not in str(answer)
        assert "10.0.0.7" not in str(answer)
    assert answers[0].reasons[0] == "the handler raised ValueError"


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (StoreMismatch(SECRET), 503, "the store is away"),
        (SourceUnavailable(SECRET), 503, "the store is away"),
        (ConfigError(SECRET), 503, "the store is away"),
        (RuntimeError(SECRET), 500, "Something went wrong here; the log says what."),
    ],
)
def test_an_unexpected_error_is_503_or_500_without_the_text_of_the_error(
    error: Exception, status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: str, __: object) -> None:
        raise error

    answer = ask(Endpoint(WatchedStore(broken)).app, call("a"))
    assert (answer.status, answer.body) == (status, {"reason": reason})
    assert SECRET in caplog.text
    assert ("Traceback" in caplog.text) == (status == 500), "an error of ours says what is wrong"


def test_other_paths_and_methods_are_refused_in_json(endpoint: Endpoint) -> None:
    assert ask(endpoint.app, path="/events", method="GET").headers["allow"] == "POST"
    assert ask(endpoint.app, path="/events", method="GET").status == 405
    assert ask(endpoint.app, call("a"), path="/events/").status == 404
    assert "POST /events" in ask(endpoint.app, path="/", method="GET").body["reason"]
    for method in ("OPTIONS", "TRACE", "PUT"):
        refused = ask(endpoint.app, path="/events", method=method)
        assert (refused.status, refused.headers["allow"]) == (405, "POST")


def test_ready_reports_whether_the_store_answers_without_its_address() -> None:
    endpoint = Endpoint()
    answer = ask(endpoint.app, path="/ready", method="GET")
    idle = {"under_way": 0, "oldest": 0.0}
    assert (answer.status, answer.body) == (200, {"status": "ok", **idle})
    endpoint = Endpoint(WatchedStore(unreached("claim", "show")))
    answer = ask(endpoint.app, path="/ready", method="GET")
    assert (answer.status, answer.body) == (503, {"status": "the store is away", **idle})
    assert ask(endpoint.app, path="/health", method="GET").status == 200


def test_the_store_is_not_called_for_every_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    store = WatchedStore(lambda verb, _: asked.append(verb))
    endpoint = Endpoint(store)
    monkeypatch.setattr(health, "ANSWER_LIFE", 3600)
    for _ in range(3):
        ask(endpoint.app, path="/ready", method="GET")
    assert asked == ["claim", "settle"]
    monkeypatch.setattr(health, "ANSWER_LIFE", -1)
    store.look = unreached("show")
    assert ask(endpoint.app, path="/ready", method="GET").status == 503


def test_ready_writes_at_the_start_and_from_a_failed_event_until_a_write_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "ANSWER_LIFE", -1)
    asked: list[str] = []
    note = asked.append
    store = WatchedStore(lambda verb, _: note(verb))
    endpoint = Endpoint(store)

    def ready() -> int:
        asked.clear()
        return ask(endpoint.app, path="/ready", method="GET").status

    assert (ready(), asked) == (200, ["claim", "settle"])
    assert (ready(), asked) == (200, ["show"])
    store.look = full()
    # No event has failed yet, and a read costs less than a write.
    assert ready() == 200
    assert ask(endpoint.app, call("a")).status == 503
    for _ in range(2):
        assert ready() == 503
    store.look = lambda verb, _: note(verb)
    assert (ready(), asked) == (200, ["claim", "settle"])
    assert (ready(), asked) == (200, ["show"])
    assert store.stats().records == 0


def test_ready_tries_no_write_after_the_failure_of_a_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "ANSWER_LIFE", -1)
    endpoint = Endpoint(store := WatchedStore(away()))
    assert ask(endpoint.app, path="/ready", method="GET").status == 200
    endpoint.failing["a"] = ValueError("no such customer")
    assert ask(endpoint.app, call("a")).status == 503
    store.look = full()
    assert ask(endpoint.app, path="/ready", method="GET").status == 200


def test_an_outage_of_the_store_is_logged_once_despite_many_probes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "ANSWER_LIFE", -1)
    monkeypatch.setattr(log, "SECOND_LINE", 3600)
    caplog.set_level("INFO", "eventonce.web")
    store = WatchedStore(unreached("claim", "show"))
    endpoint = Endpoint(store)
    for _ in range(3):
        assert ask(endpoint.app, path="/ready", method="GET").status == 503
    store.look = lambda *_: None
    for _ in range(2):
        assert ask(endpoint.app, path="/ready", method="GET").status == 200
    first, last = [it.getMessage() for it in caplog.records if it.name == "eventonce.web"]
    assert first.startswith("not ready: ")
    assert last.startswith("ready again, after ")


@pytest.mark.parametrize("host", ["fastapi", "starlette"])
def test_the_receiver_is_mounted_in_another_app(endpoint: Endpoint, host: str) -> None:
    outer: Any = (
        FastAPI() if host == "fastapi" else Starlette(routes=[Mount("/hooks", endpoint.app)])
    )
    if host == "fastapi":
        outer.mount("/hooks", endpoint.app)
    assert ask(outer, call("a"), path="/hooks/events").statuses == ["done"]
    described = ask(outer, path="/hooks/openapi.json", method="GET").body
    assert described["servers"] == [{"url": "/hooks"}]
    assert "/events" in described["paths"]
    lost = ask(outer, call("a"), path="/hooks/event")
    assert (lost.status, lost.body["reason"]) == (
        404,
        "events go to POST /hooks/events; /hooks/openapi.json describes the rest",
    )


def test_an_event_without_a_key_is_one_dead_letter_even_if_sent_again(
    endpoint: Endpoint,
) -> None:
    bad = {"detail-type": "call", "detail": {}}
    for attempt in ("1", "2"):
        answer = ask(endpoint.app, bad, headers={**JSON, "traceparent": attempt})
        assert answer.statuses == ["invalid"]
    assert ask(endpoint.app, bad | {"id": "another"}).statuses == ["invalid"]
    first, other = endpoint.letters()
    assert b"traceparent" not in first
    assert b'"another"' in other


def test_headers_reach_the_rules_and_secrets_reach_no_dead_letter() -> None:
    consumer = Consumer("memory:", rules="standard-webhooks", handler=lambda _: None)
    settings = Serve(
        api_keys=["key-hunter2"],
        users={"u": "pass-hunter2"},
        api_key_header="X-Our-Key",
        **PATIENT,
    )
    app = receiver(consumer, settings)
    known = {
        **JSON,
        "X-Our-Key": "key-hunter2",
        "Authorization": "Basic dTpwYXNzLWh1bnRlcjI=",
        "Cookie": "c=hunter2",
        "webhook-timestamp": "1",
        "webhook-signature": "v1,hunter2",
    }
    body = {"type": "paid", "data": {}}
    hook = {**known, "webhook-id": "msg_1"}
    assert ask(app, body, headers=hook).statuses == ["done"]
    assert ask(app, body, headers={**hook, "webhook-timestamp": "2"}).statuses == ["duplicate"]
    assert ask(app, body, headers=known).status == 400
    (letter,) = consumer.letters()
    assert b"hunter2" not in letter.event
    assert b"dTpwYXNz" not in letter.event
    consumer.close()


def test_an_event_that_is_too_large_becomes_a_dead_letter_and_the_other_event_runs() -> None:
    ran: list[str] = []
    consumer = Consumer(
        "memory:", handler=lambda job: ran.append(job.event.id), rules="eventbridge", max_bytes=200
    )
    app = receiver(consumer, OPEN)
    answer = ask(app, [call("small"), call("large", text="x" * 300)])
    assert answer.statuses == ["done", "invalid"]
    assert ran == ["small"]
    (letter,) = consumer.letters()
    assert b"large" in letter.event
    consumer.close()
