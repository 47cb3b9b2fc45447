"""Several events of one request under one delivery id: different events run, copies do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eventonce import Consumer, Job, Rule
from eventonce.aws import lambda_handler
from eventonce.envelope import encode, read, read_body
from eventonce.types import Event
from eventonce.web import receiver
from tests.unit.asking import JSON, ask
from tests.unit.endpoint import OPEN

A, B, C = ({"order": name} for name in "abc")
IDS = [
    {"webhook-id": "msg_1"},
    {"x-shopify-event-id": "e-1", "x-shopify-topic": "orders/paid"},
    {"x-tenant-delivery": "d-1"},
    {"x-at": "2026-05-04T09:15:27Z"},
]
DATED = Rule(name="dated", requires=["headers.x-at"], key=["headers.x-at"], at="headers.x-at")
OWN = Rule(
    name="own", requires=["headers.x-tenant-delivery"], key=["headers.x-tenant-delivery", "type?"]
)


class Shop:
    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails = False
        self.consumer = Consumer("memory:", rules=[OWN, DATED, "auto"], handler=self._handle)
        self.app = receiver(self.consumer, OPEN)
        self.function = lambda_handler(self.consumer)

    def _handle(self, job: Job) -> None:
        if self.fails:
            raise ValueError
        self.ran.append(job.event.detail["order"])

    def post(self, body: Any, ids: dict[str, str]) -> list[str]:
        return ask(self.app, body, headers=JSON | ids).statuses

    def invoke(self, body: Any, ids: dict[str, str]) -> list[str]:
        request = {
            "requestContext": {"http": {"method": "POST", "path": "/"}},
            "headers": JSON | ids,
            "body": json.dumps(body),
        }
        answer = json.loads(self.function(request, None)["body"])
        return [told["status"] for told in answer["events"]]


@pytest.fixture(params=["post", "invoke"])
def shop(request: pytest.FixtureRequest) -> Any:
    made = Shop()
    made.send = getattr(made, request.param)  # type: ignore[attr-defined]
    yield made
    made.consumer.close()


@pytest.mark.parametrize("ids", IDS)
def test_different_events_of_one_request_all_run_and_a_second_request_has_only_copies(
    shop: Any, ids: dict[str, str]
) -> None:
    assert shop.send([A, B, C], ids) == ["done"] * 3
    # In the same order, in another order, and without a settled event.
    assert shop.send([A, B, C], ids) == ["duplicate"] * 3
    assert shop.send([C, A, B], ids) == ["duplicate"] * 3
    assert shop.send([C, B], ids) == ["duplicate"] * 2
    assert shop.ran == ["a", "b", "c"]


@pytest.mark.parametrize(
    "envelope",
    [
        {"specversion": "1.0", "type": "order", "source": "/shop"},
        {"detail-type": "order", "source": "shop"},
    ],
)
def test_events_with_their_own_ids_all_run_under_a_key_from_a_header_of_the_request(
    shop: Any, envelope: dict[str, str]
) -> None:
    content = "data" if "specversion" in envelope else "detail"
    first, second = ({**envelope, "id": one["order"], content: one} for one in (A, B))
    assert shop.send([first, second], IDS[2]) == ["done"] * 2
    assert shop.send([second, first], IDS[2]) == ["duplicate"] * 2
    assert shop.send([first, first], IDS[2]) == ["duplicate", "done"]


@pytest.mark.parametrize("ids", IDS)
def test_equal_events_of_one_request_both_run_and_their_copies_are_duplicates(
    shop: Any, ids: dict[str, str]
) -> None:
    assert shop.send([A, B, A], ids) == ["done"] * 3
    assert shop.send([A, A, B], ids) == ["duplicate"] * 3
    assert shop.send([A, A, A], ids) == ["duplicate", "duplicate", "done"]


@pytest.mark.parametrize("ids", IDS)
def test_a_single_event_has_the_key_of_its_delivery_id_alone(
    shop: Any, ids: dict[str, str]
) -> None:
    assert shop.send(A, ids) == ["done"]
    assert shop.send([A], ids) == ["duplicate"]
    assert shop.send(B, ids) == ["duplicate"]
    names = frozenset(ids)
    (event,) = read_body(json.dumps(A).encode(), JSON | ids, keep=names)
    first, _ = read_body(json.dumps([A, B]).encode(), JSON | ids, keep=names)
    assert isinstance(event, Event)
    assert isinstance(first, Event)
    assert not event.part
    rules = shop.consumer.rules
    assert rules.plan(event, 1)[1].key != rules.plan(first, 1)[1].key
    assert rules.explain(first).parts[-1].value == first.part


def test_an_event_of_an_array_keeps_its_part_and_its_key_as_a_dead_letter() -> None:
    shop = Shop()
    shop.fails = True
    for _ in range(6):
        shop.post([A, B], IDS[0])
    letters = list(shop.consumer.letters())
    assert len(letters) == 2
    shop.fails = False
    assert [outcome.status for outcome in shop.consumer.redrive()] == ["done", "done"]
    assert shop.post([A, B], IDS[0]) == ["duplicate"] * 2
    assert sorted(shop.ran) == ["a", "b"]


def test_events_without_headers_have_no_part() -> None:
    assert [
        event.part for event in read_body(b'[{"a":1},{"a":2}]') if isinstance(event, Event)
    ] == [
        "",
        "",
    ]


def test_the_part_of_an_event_stays_the_same_when_encoded_and_read_again() -> None:
    first, _ = read_body(b'[{"a":1},{"a":1}]', {"webhook-id": "m"})
    assert isinstance(first, Event)
    assert read(encode(first)).part == first.part != ""
