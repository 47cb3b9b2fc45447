"""One table through one client: batches of writes and of reads, each answered alone.

`decisions` says what to write under which condition; `faults` says what an error means.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from botocore import exceptions

from eventonce.errors import EventonceError, StoreUnavailable
from eventonce.stores.dynamodb import receipts
from eventonce.stores.dynamodb.client import Link
from eventonce.stores.dynamodb.codec import Item, Layout
from eventonce.stores.dynamodb.errors import PASSING, Place, explain, refusal, strange
from eventonce.stores.dynamodb.statements import Insert, Write, statement
from eventonce.stores.dynamodb.timing import ServiceClock

STATEMENTS: Final = 25
"""Statements that one BatchExecuteStatement carries."""
KEYS: Final = 100
"""Keys that one BatchGetItem carries."""

TRIES: Final = 5
"""Times that a statement or a key which the service left undone is sent: with the pauses between
them about a second, well within a lease and a transport's patience."""
PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0

DRIVERS: Final = (exceptions.BotoCoreError, exceptions.ClientError, OSError)
"""What the driver raises where a request failed."""

T = TypeVar("T")


class Done(msgspec.Struct, frozen=True):
    """It was written; a deletion brings what was there."""

    item: Item | None = None


class Refused(msgspec.Struct, frozen=True):
    """The condition did not hold; the item that stood there, where the service tells it."""

    item: Item | None = None


Written = Done | Refused | EventonceError
Found = Item | EventonceError | None


class Table:
    """What the store asks of DynamoDB."""

    def __init__(self, place: Place, layout: Layout, link: Link, clock: ServiceClock) -> None:
        self.place = place
        self.layout = layout
        self.clock = clock
        self._link = link

    def call(self, operation: str, **asked: Any) -> dict[str, Any]:
        """One request; the driver's errors as ours, and an answer that is not the service's too."""
        try:
            return self._ask(operation, asked)
        except DRIVERS as error:
            raise explain(error, self.place) from error

    def _ask(self, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
        """One request, and the service's date noted."""
        sent = self.clock.wall()
        ask = getattr(self._link.client, operation)
        try:
            answer: dict[str, Any] = ask(**asked, **receipts.ASKED.get(operation, {}))
        except exceptions.ClientError as error:
            self._hear(error.response, sent)
            raise
        except (AttributeError, KeyError, TypeError) as error:
            # The driver looked for something in the answer that is not there.
            raise strange(operation, self.place) from error
        if not receipts.is_answer(operation, asked, answer):
            raise strange(operation, self.place)
        self._hear(answer, sent)
        return answer

    def _hear(self, answer: Any, sent: int) -> None:
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.clock.hear(headers.get("date"), sent, self.clock.wall())

    def read(self, keys: Sequence[str]) -> dict[str, Found]:
        """The items under these keys as they are now; None where there is none."""
        found: dict[str, Found] = {}
        for part in self._link.each(self._read, _parts(keys, KEYS)):
            found.update(part)
        return found

    def _read(self, keys: Sequence[str]) -> dict[str, Found]:
        found: dict[str, Found] = dict.fromkeys(keys)
        wanted: Any = {
            self.place.table: {
                "Keys": [{self.layout.key: {"S": key}} for key in keys],
                "ConsistentRead": True,
            }
        }
        for attempt in range(TRIES):
            try:
                answer = self.call("batch_get_item", RequestItems=wanted)
            except EventonceError as error:
                return {**found, **dict.fromkeys(self._keys(wanted), error)}
            for item in answer["Responses"].get(self.place.table, ()):
                found[item[self.layout.key]["S"]] = item
            wanted = answer.get("UnprocessedKeys")
            if not wanted:
                return found
            pause(attempt)
        late = refusal("ThrottlingError", "", self.place)
        return {**found, **dict.fromkeys(self._keys(wanted), late)}

    def _keys(self, wanted: Any) -> Iterable[str]:
        return (key[self.layout.key]["S"] for key in wanted[self.place.table]["Keys"])

    def write(self, writes: Sequence[Write]) -> list[Written]:
        """Do each of these alone, whatever becomes of the others; no two of one item."""
        parts = self._link.each(self._write, _parts(writes, STATEMENTS))
        return [outcome for part in parts for outcome in part]

    def _write(self, writes: Sequence[Write]) -> list[Written]:
        if len(writes) == 1 and isinstance(writes[0], Insert):
            return [self._insert(writes[0])]
        outcomes: dict[int, Written] = {}
        left = list(range(len(writes)))
        for attempt in range(TRIES):
            statements = [statement(writes[index], self.place.table, self.layout) for index in left]
            try:
                answers = self.call("batch_execute_statement", Statements=statements)["Responses"]
            except EventonceError as error:
                outcomes.update(dict.fromkeys(left, error))
                break
            outcomes.update(zip(left, map(self._outcome, answers), strict=True))
            left = [
                index
                for index, answer in zip(left, answers, strict=True)
                if answer.get("Error", {}).get("Code") in PASSING
            ]
            if not left:
                break
            pause(attempt)
        return [outcomes[index] for index in range(len(writes))]

    def _outcome(self, answer: dict[str, Any]) -> Written:
        error = answer.get("Error")
        if not error:
            return Done(answer.get("Item"))
        if error.get("Code") in ("ConditionalCheckFailed", "DuplicateItem"):
            return Refused(error.get("Item"))
        return refusal(error.get("Code", ""), error.get("Message", ""), self.place)

    def _insert(self, write: Insert) -> Written:
        """A lone new item by PutItem, which unlike a statement brings the old one if refused."""
        asked = {
            "TableName": self.place.table,
            "Item": write.item,
            "ConditionExpression": "attribute_not_exists(#key)",
            "ExpressionAttributeNames": {"#key": self.layout.key},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        try:
            self._ask("put_item", asked)
        except StoreUnavailable as error:
            return error
        except DRIVERS as error:
            answer: Any = getattr(error, "response", None) or {}
            if answer.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
                return Refused(answer.get("Item"))
            fault = explain(error, self.place)
            fault.__cause__ = error
            return fault
        return Done()


def pause(attempt: int) -> None:
    """Wait a random part of a time that doubles: those who collided come back one by one."""
    time.sleep(random.uniform(0, min(LONGEST_PAUSE, PAUSE * 2**attempt)))


def _parts(things: Sequence[T], size: int) -> list[Sequence[T]]:
    return [things[start : start + size] for start in range(0, len(things), size)]
