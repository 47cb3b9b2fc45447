"""One table through one client: batches of writes and of reads, with an answer for each.

`optimistic` decides what is written on which condition; `errors` explains errors.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

import msgspec

from eventonce.aws.errors import kind_of_code, response_of, strange
from eventonce.aws.sessions import Client
from eventonce.errors import EventonceError, StoreUnavailable
from eventonce.stores.dynamodb.codec import Insert, Item, Layout, Write, statement
from eventonce.stores.dynamodb.errors import TableRef, explain, refusal

BATCH_STATEMENTS: Final = 25
"""The most statements in one BatchExecuteStatement."""
BATCH_KEYS: Final = 100
"""The most keys in one BatchGetItem."""

BATCH_ATTEMPTS: Final = 5
"""How often a statement or a key that the service did not process is sent: with pauses about a
second in all, well within a lease and a transport's deadline."""
BATCH_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0

MOST_REQUESTS: Final = 8
"""The most requests of one call in flight: with more, this process is busy encoding them."""

A = TypeVar("A")
B = TypeVar("B")


class Done(msgspec.Struct, frozen=True):
    """The answer to a statement that was executed; a deletion returns the deleted item."""

    item: Item | None = None


class Refused(msgspec.Struct, frozen=True):
    """The condition did not hold; `item` is the item in the table, if the service returns it."""

    item: Item | None = None


Written = Done | Refused | EventonceError
Found = Item | EventonceError | None


class ServiceClock:
    """The clock of this machine, corrected by the `Date` of DynamoDB's answers: DynamoDB has no
    function that tells its time.

    A date names a whole second. The answer was made between sending and receiving, so it gives a
    lower and an upper bound of the clock's error; many answers together narrow it to about one
    round trip. A clock within the bounds is used as it is. Any other is moved to the lower bound:
    it is then up to a second behind the service and never ahead of it, so that no lease ends early.
    """

    def __init__(self, wall: Callable[[], int]) -> None:
        self.wall = wall
        self._bounds: tuple[int, int] | None = None
        self._parsed: tuple[str, int] = ("", 0)

    @property
    def offset(self) -> int:
        """Milliseconds to add to this machine's time."""
        if self._bounds is None:
            return 0
        earliest, latest = self._bounds
        return 0 if earliest <= 0 <= latest else earliest

    def now(self) -> int:
        """Milliseconds since the epoch, as the service counts them."""
        return self.wall() + self.offset

    def learn(self, date: str | None, sent: int, received: int) -> None:
        """Learn from an answer, by this machine's times of sending and receiving."""
        if date is None or received < sent:
            return
        second = self._second(date)
        earliest, latest = second - received, second + 1_000 - sent
        if self._bounds is not None:
            narrowed = max(earliest, self._bounds[0]), min(latest, self._bounds[1])
            if narrowed[0] <= narrowed[1]:
                self._bounds = narrowed
                return
        # The first answer, or this machine's clock was set since the last one.
        self._bounds = earliest, latest

    def _second(self, date: str) -> int:
        """Return the date in milliseconds; most answers within a second have the same date."""
        text, second = self._parsed
        if text != date:
            second = int(parsedate_to_datetime(date).timestamp()) * 1_000
            self._parsed = date, second
        return second


class Table:
    """The requests to one DynamoDB table. Safe in many threads, and after a fork."""

    def __init__(
        self,
        name: str,
        layout: Layout,
        clock: ServiceClock,
        make: Callable[[], Any],
        given: Any = None,
    ) -> None:
        """`make` connects; `given` is the caller's own client."""
        self.ref = TableRef(name)
        self.layout = layout
        self.clock = clock
        self._client = Client(make, lambda error: explain(error, self.ref), given)
        self._pool: Any = None
        self._process = os.getpid()

    @property
    def client(self) -> Any:
        """The client for the next call."""
        return self._client.current

    def close(self) -> None:
        """End the threads, and close the connections if the client is our own."""
        pool, self._pool = self._pool, None
        if pool is not None and self._process == os.getpid():
            pool.shutdown(wait=False)
        self._client.close()

    def call(self, operation: str, **asked: Any) -> dict[str, Any]:
        """Send one request; errors of the driver, and answers that are not from the service, are
        raised as ours."""
        sent = self.clock.wall()
        try:
            answer = self._client.call(operation, **asked)
        except EventonceError as error:
            self._note_date(response_of(error.__cause__), sent)
            raise
        if not _is_answer(operation, asked, answer):
            raise strange(operation, self.ref, StoreUnavailable)
        self._note_date(answer, sent)
        return answer

    def _note_date(self, answer: Any, sent: int) -> None:
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.clock.learn(headers.get("date"), sent, self.clock.wall())

    def _map(self, do: Callable[[Sequence[A]], B], things: Sequence[A], size: int) -> Iterable[B]:
        """Call `do` with parts of this size, in parallel if there are several; results in order."""
        parts = [things[start : start + size] for start in range(0, len(things), size)]
        if len(parts) < 2:
            return [do(part) for part in parts]
        if self._pool is None or self._process != os.getpid():
            # The import loads `logging`, which a function with small batches does not need. A
            # forked process has none of the threads. There is no lock: a second pool, made by
            # another thread at the same time, is ended by the garbage collector.
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

            self._pool = ThreadPoolExecutor(MOST_REQUESTS, thread_name_prefix="eventonce-dynamodb")
            self._process = os.getpid()
        answers: Iterable[B] = self._pool.map(do, parts)
        return answers

    def read(self, keys: Sequence[str]) -> dict[str, Found]:
        """Return the items under these keys as they are now; None for a key without an item."""
        found: dict[str, Found] = {}
        for part in self._map(self._read, keys, BATCH_KEYS):
            found.update(part)
        return found

    def _read(self, keys: Sequence[str]) -> dict[str, Found]:
        found: dict[str, Found] = dict.fromkeys(keys)
        wanted: Any = {
            self.ref.table: {
                "Keys": [{self.layout.key: {"S": key}} for key in keys],
                "ConsistentRead": True,
            }
        }
        for attempt in range(BATCH_ATTEMPTS):
            try:
                answer = self.call("batch_get_item", RequestItems=wanted)
            except EventonceError as error:
                return {**found, **dict.fromkeys(self._keys(wanted), error)}
            for item in answer["Responses"].get(self.ref.table, ()):
                found[item[self.layout.key]["S"]] = item
            wanted = answer.get("UnprocessedKeys")
            if not wanted:
                return found
            pause(attempt)
        late = refusal("ThrottlingError", "", self.ref)
        return {**found, **dict.fromkeys(self._keys(wanted), late)}

    def _keys(self, wanted: Any) -> Iterable[str]:
        return (key[self.layout.key]["S"] for key in wanted[self.ref.table]["Keys"])

    def write(self, writes: Sequence[Write]) -> list[Written]:
        """Do each write independently of the others; no two may be of one item."""
        parts = self._map(self._write, writes, BATCH_STATEMENTS)
        return [outcome for part in parts for outcome in part]

    def _write(self, writes: Sequence[Write]) -> list[Written]:
        if len(writes) == 1 and isinstance(writes[0], Insert):
            return [self._insert(writes[0])]
        outcomes: dict[int, Written] = {}
        left = list(range(len(writes)))
        for attempt in range(BATCH_ATTEMPTS):
            statements = [statement(writes[index], self.ref.table, self.layout) for index in left]
            try:
                answers = self.call("batch_execute_statement", Statements=statements)["Responses"]
            except EventonceError as error:
                outcomes.update(dict.fromkeys(left, error))
                break
            outcomes.update(zip(left, map(self._outcome, answers), strict=True))
            left = [
                index
                for index, answer in zip(left, answers, strict=True)
                if kind_of_code(answer.get("Error", {}).get("Code", "")) == "busy"
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
        return refusal(error.get("Code", ""), error.get("Message", ""), self.ref)

    def _insert(self, write: Insert) -> Written:
        """Insert one item by PutItem, which unlike a statement returns the old item if refused."""
        try:
            self.call(
                "put_item",
                TableName=self.ref.table,
                Item=write.item,
                ConditionExpression="attribute_not_exists(#key)",
                ExpressionAttributeNames={"#key": self.layout.key},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                # With it the answer is never empty; an empty answer could come from any server.
                ReturnConsumedCapacity="TOTAL",
            )
        except EventonceError as error:
            told = response_of(error.__cause__)
            if told.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
                return Refused(told.get("Item"))
            return error
        return Done()


def pause(attempt: int) -> None:
    """Wait a random part of a doubling time, so that colliding callers come back one by one."""
    time.sleep(random.uniform(0, min(LONGEST_PAUSE, BATCH_PAUSE * 2**attempt)))


def _is_answer(operation: str, asked: Mapping[str, Any], answer: Any) -> bool:
    """Return whether the answer covers every part of the request. Otherwise it comes from a proxy
    or another server, and proves nothing, whatever its HTTP status."""
    try:
        match operation:
            case "batch_execute_statement":
                each = answer["Responses"]
                return len(each) == len(asked["Statements"]) and all(
                    one.get("TableName") or one["Error"]["Code"] for one in each
                )
            case "batch_get_item":
                # Each table is named: its keys are found, absent or left over.
                named = {**answer["Responses"], **(answer.get("UnprocessedKeys") or {})}
                return all(table in named for table in asked["RequestItems"])
            case _:
                found = answer[_ANSWER_FIELDS[operation]]
                # A page of items may be empty.
                return bool(found) or isinstance(found, list)
    except (AttributeError, KeyError, TypeError):
        return False


_ANSWER_FIELDS: Final[Mapping[str, str]] = {
    "put_item": "ConsumedCapacity",
    "query": "Items",
    "scan": "Items",
    "describe_table": "Table",
    "describe_time_to_live": "TimeToLiveDescription",
    "create_table": "TableDescription",
    "update_table": "TableDescription",
    "update_time_to_live": "TimeToLiveSpecification",
}
"""The field that the service's answer to an operation always has."""
