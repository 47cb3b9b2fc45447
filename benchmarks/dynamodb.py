"""The DynamoDB store against Powertools' idempotency on the same emulator.

The figures are CPU time of the client and request units; the time of an emulator says nothing about
the service. Ours goes from bytes to outcomes, with claim and completion; Powertools gets ready
dicts. The last figures are those of docs/decisions/0007.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from types import SimpleNamespace
from typing import Any

import boto3
import msgspec
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from botocore.config import Config

from benchmarks import Figure
from benchmarks.yardstick import EVENT
from eventonce import Consumer
from eventonce.aws.direct import Endpoint, ServiceClient
from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.stores.dynamodb.client import DYNAMODB
from tests.servers.aws import REGION, dynamodb_local, emulated, ministack

ROUNDS = 5
"""Each round times all variants one after the other; the median of their ratios counts."""
EVENTS = 200
"""The events of each variant in a round."""
BATCHES = (1, 10, 100)
KINDS = ("new events", "copies")
MOST = {10: 0.15}
"""The limit as a share of Powertools' CPU time, by batch size."""
REMEMBER = 10 * 86_400
READ_PRICE = 0.2
"""The cost of a read unit in write units, by Amazon's prices for on-demand tables."""

TABLE, THEIRS = "bench", "bench-powertools"


class Meter:
    """Counts the requests of a client, and the units that the service would charge for them.

    Units are those that the emulator reports. If it reports none (ministack for BatchGetItem,
    DynamoDB Local for statements, both for a refused PutItem), Amazon's rule is used: one for every
    item below 1 KB that is written, or refused by its condition, and one for every item below 4 KB
    that is read consistently.
    """

    def __init__(self, client: Any) -> None:
        self.requests = 0
        self.written = self.read = 0.0
        events = client.meta.events
        events.register("provide-client-params.dynamodb", self._ask)
        events.register("after-call.dynamodb", self._told)
        self._asked = 0

    def _ask(self, params: dict[str, Any], **_: object) -> dict[str, Any]:
        self._asked = len(params.get("Statements", "1"))
        for wanted in params.get("RequestItems", {}).values():
            self._asked = len(wanted["Keys"])
        return {**params, "ReturnConsumedCapacity": "TOTAL"}

    def _told(self, parsed: dict[str, Any], model: Any, **_: object) -> None:
        told = parsed.get("ConsumedCapacity") or []
        told = [told] if isinstance(told, dict) else told
        units = sum(float(it["CapacityUnits"]) for it in told) or self._asked
        self.requests += 1
        if model.name in ("BatchGetItem", "GetItem"):
            self.read += units
        else:
            self.written += units


def _client(endpoint: str, *, quick: bool = True) -> Any:
    config = Config(parameter_validation=not quick, retries={"total_max_attempts": 1})
    return boto3.client("dynamodb", region_name=REGION, endpoint_url=endpoint, config=config)


def _powertools(client: Any) -> Callable[[list[dict[str, Any]]], None]:
    """Return Powertools' function: it takes one event a call."""
    body = "detail.eventBody"
    parts = ("conversationId", "participantId", "sessionId", "eventTime")
    config = IdempotencyConfig(
        event_key_jmespath=f'["detail-type", {", ".join(f"{body}.{part}" for part in parts)}]',
        expires_after_seconds=REMEMBER,
    )
    # Without a context it logs a warning with every call, which would not be fair.
    context: Any = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000)
    config.register_lambda_context(context)

    def nothing(event: dict[str, Any]) -> None:
        """Do nothing, like our handler."""

    layer = DynamoDBPersistenceLayer(table_name=THEIRS, boto3_client=client)
    handle = idempotent_function(
        nothing, data_keyword_argument="event", persistence_store=layer, config=config
    )

    def process(events: list[dict[str, Any]]) -> None:
        for event in events:
            handle(event=event)

    return process


def _ours(consumer: Consumer, batch: int) -> Callable[[list[bytes]], None]:
    def process(events: list[bytes]) -> None:
        for start in range(0, len(events), batch):
            consumer.process(events[start : start + batch])

    return process


def _consumer(store: DynamoDBStore) -> Consumer:
    consumer = Consumer(store, name="bench", rules="genesys")
    consumer.on()(lambda _: None)
    return consumer


def _events(chance: random.Random) -> list[bytes]:
    return [EVENT.replace(b"1b8e4c38", b"%08x" % chance.getrandbits(32)) for _ in range(EVENTS)]


def _spent(work: Callable[[Any], object], given: Any) -> float:
    """Return the CPU time of this process an event, in microseconds."""
    started = time.process_time()
    work(given)
    return (time.process_time() - started) / len(given) * 1e6


def _speed(endpoint: str) -> Iterator[Figure]:
    chance = random.Random(1)
    powertools = _powertools(_client(endpoint, quick=False))
    # One for each kind: with many copies a store begins to read first, and continues for a while.
    # By URI, as in a function: with the store's own client.
    uri = f"dynamodb://{TABLE}?region={REGION}&endpoint={endpoint}"
    consumers = {kind: _consumer(DynamoDBStore.from_uri(uri)) for kind in KINDS}
    spent: dict[tuple[str, str], list[float]] = {}
    ratios: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        dicts = [msgspec.json.decode(event) for event in _events(chance)]
        theirs = {kind: _spent(powertools, dicts) for kind in KINDS}
        for kind in KINDS:
            spent.setdefault((kind, "Powertools"), []).append(theirs[kind])
        for batch in BATCHES:
            events = _events(chance)
            for kind in KINDS:
                ours = _spent(_ours(consumers[kind], batch), events)
                spent.setdefault((kind, f"ours in batches of {batch}"), []).append(ours)
                ratios.setdefault((kind, batch), []).append(ours / theirs[kind])
    for consumer in consumers.values():
        consumer.close()
    for (kind, name), found in spent.items():
        yield Figure(f"{kind}: {name}", median(found), "µs CPU")
    for (kind, batch), found in ratios.items():
        what = f"{kind}: ours in batches of {batch} / Powertools"
        yield Figure(what, median(found), "of its CPU", at_most=MOST.get(batch))


def _units(endpoint: str) -> Iterator[Figure]:
    chance = random.Random(2)
    client = _client(endpoint, quick=False)
    powertools, meter = _powertools(client), Meter(client)
    dicts = [msgspec.json.decode(event) for event in _events(chance)]
    theirs = {kind: _price(meter, powertools, dicts) for kind in KINDS}
    for kind in KINDS:
        yield from _bill(f"{kind}: Powertools", theirs[kind], None)
    for batch in (1, 10):
        client = _client(endpoint)
        consumer, meter = _consumer(DynamoDBStore(client, TABLE)), Meter(client)
        events = _events(chance)
        for kind in KINDS:
            ours = _price(meter, _ours(consumer, batch), events)
            yield from _bill(f"{kind}: ours in batches of {batch}", ours, theirs[kind])
        yield from _lone_copies(consumer, meter, batch, chance)
        consumer.close()


def _lone_copies(
    consumer: Consumer, meter: Meter, batch: int, chance: random.Random
) -> Iterator[Figure]:
    """Yield the extra cost of one copy among many new events."""
    old, *rest = (_events(chance) for _ in range(4))
    consumer.process(old)
    for new in rest:
        _ours(consumer, batch)(new)
    new = _events(chance)
    mixed = [old[place // 20] if place % 20 == 0 else event for place, event in enumerate(new)]
    copies = EVENTS // 20
    written, read, _ = _price(meter, _ours(consumer, batch), mixed)
    cost = written * EVENTS - 2 * (EVENTS - copies) + read * EVENTS * READ_PRICE
    yield Figure(f"a copy among 19 new: ours in batches of {batch}", cost / copies, "in writes")


def _price(meter: Meter, work: Callable[[Any], object], given: Any) -> tuple[float, float, float]:
    """Return units written, units read, and requests an event."""
    before = meter.written, meter.read, meter.requests
    work(given)
    after = meter.written, meter.read, meter.requests
    written, read, requests = (
        (now - then) / len(given) for now, then in zip(after, before, strict=True)
    )
    return written, read, requests


def _bill(
    what: str, ours: tuple[float, float, float], theirs: tuple[float, float, float] | None
) -> Iterator[Figure]:
    written, read, requests = ours
    most = None if theirs is None else theirs[0] + theirs[1] * READ_PRICE
    yield Figure(what, written, "write units")
    if read:
        yield Figure(what, read, "read units")
    yield Figure(what, written + read * READ_PRICE, "in writes", at_most=most)
    yield Figure(what, requests, "requests")


def _ways(endpoint: str) -> Iterator[Figure]:
    """Yield ten conditional writes: in one batch, in parallel, and in one batch without boto3."""
    names = ("eventHash", "token", "nonce", "attempt", "expires_ms", "held_until_ms", "stamp")
    attributes = ", ".join(f"'{name}': ?" for name in names)
    text = f'INSERT INTO "{TABLE}" VALUE {{{attributes}}}'

    def items() -> list[dict[str, Any]]:
        numbers = {name: {"N": "1794736838912000"} for name in names[1:]}
        return [{names[0]: {"S": random.randbytes(16).hex()}, **numbers} for _ in range(10)]

    def statements() -> list[dict[str, Any]]:
        return [{"Statement": text, "Parameters": list(item.values())} for item in items()]

    quick = _client(endpoint)
    side_by_side = ThreadPoolExecutor(10)

    def batched(_: list[int]) -> None:
        quick.batch_execute_statement(Statements=statements())

    def parallel(_: list[int]) -> None:
        asks = [
            {
                "TableName": TABLE,
                "Item": item,
                "ConditionExpression": "attribute_not_exists(eventHash)",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
            for item in items()
        ]
        list(side_by_side.map(lambda ask: quick.put_item(**ask), asks))

    own = ServiceClient(
        DYNAMODB,
        Endpoint("dynamodb", REGION, endpoint),
        connect_timeout=2.0,
        read_timeout=20.0,
        attempts=1,
    )

    def lean(_: list[int]) -> None:
        own.batch_execute_statement(Statements=statements())

    ways = {
        "one PartiQL batch by boto3": batched,
        "ten PutItem side by side by boto3": parallel,
        "one PartiQL batch by the store's own client": lean,
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(ROUNDS * 4):
        for name, way in ways.items():
            once = _spent(way, [0] * 10)
            if round_:
                spent[name].append(once)
    side_by_side.shutdown()
    own.close()
    for name, found in spent.items():
        yield Figure(f"ten claims: {name}", median(found), "µs CPU")


def _prepared(endpoint: str) -> None:
    client = _client(endpoint, quick=False)
    DynamoDBStore(client, TABLE).create()
    client.create_table(
        TableName=THEIRS,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )


def run() -> Iterator[Figure]:
    """Yield all figures on ministack, and the units also on Amazon's own emulator."""
    with emulated(), ministack() as endpoint:
        _prepared(endpoint)
        yield from _speed(endpoint)
        yield from _units(endpoint)
        yield from _ways(endpoint)
    with emulated(), dynamodb_local() as endpoint:
        _prepared(endpoint)
        for figure in _units(endpoint):
            yield figure._replace(what=f"{figure.what} (DynamoDB Local)")
