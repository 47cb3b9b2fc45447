"""One table through one client: batches of writes and of reads, each answered alone.

`optimistic` says what to write under which condition; `errors` says what an error means.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

import msgspec

from eventonce.aws.errors import response_of
from eventonce.aws.sessions import Client
from eventonce.errors import EventonceError
from eventonce.stores.dynamodb.codec import Insert, Item, Layout, Write, statement
from eventonce.stores.dynamodb.errors import TableRef, explain, is_passing, not_dynamodb, refusal

STATEMENTS: Final = 25
"""Statements that one BatchExecuteStatement carries."""
KEYS: Final = 100
"""Keys that one BatchGetItem carries."""

TRIES: Final = 5
"""Times that a statement or a key which the service left undone is sent: with the pauses between
them about a second, well within a lease and a transport's deadline."""
PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0

AT_ONCE: Final = 8
"""Requests of one call under way together: beyond that this process is busy packing them."""

A = TypeVar("A")
B = TypeVar("B")


class Done(msgspec.Struct, frozen=True):
    """The answer to a statement that was carried out; a deletion brings the item that was there."""

    item: Item | None = None


class Refused(msgspec.Struct, frozen=True):
    """The condition did not hold; the item that stood there, where the service tells it."""

    item: Item | None = None


Written = Done | Refused | EventonceError
Found = Item | EventonceError | None


class ServiceClock:
    """The clock of this machine, corrected by the `Date` of DynamoDB's answers: DynamoDB has no
    function that tells its time.

    A date names a whole second. The answer was made between sending and receiving, so it bounds
    how far the machine is off from both sides; many answers together bound it to about one round
    trip. A machine within the bounds is believed. One that is not is put to the earlier bound:
    until more is known it is then up to a second behind the service and never ahead of it, so
    that it ends no lease early.
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
        """The date in milliseconds; most answers of a second have the same one."""
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
        """`make` connects; `given` is the user's own client."""
        self.ref = TableRef(name)
        self.layout = layout
        self.clock = clock
        self._client = Client(make, lambda error: explain(error, self.ref), given)
        self._pool: Any = None
        self._process = os.getpid()

    @property
    def client(self) -> Any:
        """The client to call now."""
        return self._client.current

    def close(self) -> None:
        """End the threads, and close the connections where the client is our own."""
        pool, self._pool = self._pool, None
        if pool is not None and self._process == os.getpid():
            pool.shutdown(wait=False)
        self._client.close()

    def call(self, operation: str, **asked: Any) -> dict[str, Any]:
        """Send one request; errors of the driver, and answers that are not the service's, become
        ours."""
        sent = self.clock.wall()
        try:
            answer = self._client.call(operation, **asked)
        except EventonceError as error:
            self._note_date(response_of(error.__cause__), sent)
            raise
        if not _is_answer(operation, asked, answer):
            raise not_dynamodb(operation, self.ref)
        self._note_date(answer, sent)
        return answer

    def _note_date(self, answer: Any, sent: int) -> None:
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.clock.learn(headers.get("date"), sent, self.clock.wall())

    def _map(self, do: Callable[[Sequence[A]], B], things: Sequence[A], size: int) -> Iterable[B]:
        """Do this to parts of this size, side by side if there are several; answers in order."""
        parts = [things[start : start + size] for start in range(0, len(things), size)]
        if len(parts) < 2:
            return [do(part) for part in parts]
        if self._pool is None or self._process != os.getpid():
            # Loads `logging`, which a function with small batches does without. A forked process
            # has none of the threads. No lock: a pool that another thread made meanwhile is ended
            # by the garbage collector.
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

            self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="eventonce-dynamodb")
            self._process = os.getpid()
        answers: Iterable[B] = self._pool.map(do, parts)
        return answers

    def read(self, keys: Sequence[str]) -> dict[str, Found]:
        """The items under these keys as they are now; None where there is none."""
        found: dict[str, Found] = {}
        for part in self._map(self._read, keys, KEYS):
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
        for attempt in range(TRIES):
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
        """Do each of these alone, whatever becomes of the others; no two of one item."""
        parts = self._map(self._write, writes, STATEMENTS)
        return [outcome for part in parts for outcome in part]

    def _write(self, writes: Sequence[Write]) -> list[Written]:
        if len(writes) == 1 and isinstance(writes[0], Insert):
            return [self._insert(writes[0])]
        outcomes: dict[int, Written] = {}
        left = list(range(len(writes)))
        for attempt in range(TRIES):
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
                if is_passing(answer.get("Error", {}).get("Code", ""))
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
        """A lone new item by PutItem, which unlike a statement brings the old one if refused."""
        try:
            self.call(
                "put_item",
                TableName=self.ref.table,
                Item=write.item,
                ConditionExpression="attribute_not_exists(#key)",
                ExpressionAttributeNames={"#key": self.layout.key},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                # An answer to this is never empty, which anybody could say.
                ReturnConsumedCapacity="TOTAL",
            )
        except EventonceError as error:
            told = response_of(error.__cause__)
            if told.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
                return Refused(told.get("Item"))
            return error
        return Done()


def pause(attempt: int) -> None:
    """Wait a random part of a time that doubles: those who collided come back one by one."""
    time.sleep(random.uniform(0, min(LONGEST_PAUSE, PAUSE * 2**attempt)))


def _is_answer(operation: str, asked: Mapping[str, Any], answer: Any) -> bool:
    """Whether this answers every part of the request. An answer without what DynamoDB itself says
    is a proxy's or anybody's, and proves nothing, whatever its HTTP status."""
    holds = _ANSWER_CHECKS.get(operation)
    try:
        return holds is None or holds(asked, answer)
    except (AttributeError, KeyError, TypeError):
        return False


def _is_put(_: Mapping[str, Any], answer: Any) -> bool:
    return bool(answer["ConsumedCapacity"]["TableName"])


def _are_executed(asked: Mapping[str, Any], answer: Any) -> bool:
    each = answer["Responses"]
    return len(each) == len(asked["Statements"]) and all(
        one.get("TableName") or one["Error"]["Code"] for one in each
    )


def _are_read(asked: Mapping[str, Any], answer: Any) -> bool:
    """Every key is found, or known not to be there, or left undone: each table is named in one."""
    named = {**answer["Responses"], **(answer.get("UnprocessedKeys") or {})}
    return all(table in named for table in asked["RequestItems"])


def _lists(_: Mapping[str, Any], answer: Any) -> bool:
    return isinstance(answer["Items"], list)


def _has(name: str) -> Callable[[Mapping[str, Any], Any], bool]:
    return lambda _, answer: bool(answer[name])


_ANSWER_CHECKS: Final[Mapping[str, Callable[[Mapping[str, Any], Any], bool]]] = {
    "put_item": _is_put,
    "batch_execute_statement": _are_executed,
    "batch_get_item": _are_read,
    "query": _lists,
    "scan": _lists,
    "describe_table": _has("Table"),
    "describe_time_to_live": _has("TimeToLiveDescription"),
    "create_table": _has("TableDescription"),
    "update_table": _has("TableDescription"),
    "update_time_to_live": _has("TimeToLiveSpecification"),
}
