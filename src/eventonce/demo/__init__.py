"""The demo: a morning of calls, the deliveries that an at-least-once world makes of it, and their
effects under the usual recipes. `worker` plays the same deliveries against eventonce.

A recipe has two steps, a look and a mark, because another worker may look between the two.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

ORG: Final = "5b0c4a3e-2f1d-4c6b-9a87-0d1e2f3a4b5c"
NINE: Final = 1_794_819_600_000
"""Nine o'clock on a Monday in November 2026, in milliseconds."""

MINUTE: Final = 60_000
DAY: Final = 86_400_000
CALLS: Final = 60

TOPIC: Final = "v2.detail.events.conversation.{id}."


class Fact(NamedTuple):
    """A fact that happened once and must take effect once."""

    topic: str
    at: int
    body: dict[str, Any]


class Delivery(NamedTuple):
    """One event as it is handed to a worker."""

    arrives: int
    fact: int
    how: str
    event: bytes
    crash: bool = False
    """Whether the worker dies while it processes this delivery."""
    outage: bool = False
    """Whether the store is unavailable when it arrives."""


def facts(seed: int = 9) -> list[Fact]:
    """The facts: calls that are queued, rejected, answered, transferred and wrapped up."""
    chance = random.Random(seed)
    return [fact for number in range(CALLS) for fact in _call(number, chance)]


def _call(number: int, chance: random.Random) -> Iterator[Fact]:
    conversation = _uuid(chance)
    now = NINE + number * 20_000 + chance.randrange(8_000)
    caller, caller_session = _uuid(chance), _uuid(chance)

    def fact(topic: str, participant: str, session: str, **more: object) -> Fact:
        body = {
            "eventTime": now,
            "conversationId": conversation,
            "participantId": participant,
            "sessionId": session,
            "mediaType": "VOICE",
            "direction": "INBOUND",
            **more,
        }
        return Fact(topic, now, body)

    yield fact("customer.start", caller, caller_session)
    for _ in range(chance.choice((1, 1, 2, 3))):
        queue, queue_session = _uuid(chance), _uuid(chance)
        now += chance.randrange(200, 3_000)
        yield fact("acd.start", queue, queue_session, queueId=_uuid(chance))
        for answered in chance.choice(((True,), (True,), (False, True))):
            agent, agent_session = _uuid(chance), _uuid(chance)
            now += chance.randrange(500, 6_000)
            yield fact("user.start", agent, agent_session, userId=_uuid(chance))
            if answered:
                yield fact("acd.end", queue, queue_session, acdOutcome="ANSWERED")
                now += chance.randrange(2_000, 240_000)
            else:
                now += chance.randrange(1_000, 9_000)
            yield fact("user.end", agent, agent_session, disconnectType="TRANSFER")
        now += chance.randrange(1_000, 20_000)
        code = f"wrapup-{chance.randrange(9)}"
        yield fact("wrapup", agent, agent_session, wrapupCode=code, wrapupDurationMs=900)
    yield fact("customer.end", caller, caller_session, disconnectType="PEER")


def deliveries(happened: list[Fact], seed: int = 9) -> list[Delivery]:
    """The deliveries of these facts: some more than once, not in order, and one with a crash."""
    chance = random.Random(seed)
    arriving: list[Delivery] = []
    for number, fact in enumerate(happened):
        first = _published(fact, chance)
        arrives = fact.at + chance.choice((300, 400, 700, 2_500))
        crash = number == len(happened) // 3
        outage = len(happened) // 2 <= number < len(happened) // 2 + 4
        arriving.append(Delivery(arrives, number, "first", first, crash, outage))
        again = arrives + 30_000
        if crash or outage:
            # A worker that died, or could not reach its store, acknowledged nothing.
            arriving.append(Delivery(again, number, "redelivered", first))
        roll = chance.random()
        if roll < 0.08:
            arriving.append(Delivery(arrives, number, "two rules", first))
        elif roll < 0.13:
            later = arrives + chance.randrange(30_000, 14 * MINUTE)
            arriving.append(Delivery(later, number, "redelivered", first))
        elif roll < 0.19:
            later = arrives + chance.randrange(20 * MINUTE, 4 * DAY)
            arriving.append(Delivery(later, number, "re-published", _published(fact, chance)))
        elif roll < 0.22:
            twin = _published(fact, chance, suffix="second-integration")
            arriving.append(Delivery(arrives + 40, number, "second integration", twin))
    return sorted(arriving, key=lambda delivery: delivery.arrives)


def _published(fact: Fact, chance: random.Random, suffix: str = "crm") -> bytes:
    conversation = fact.body["conversationId"]
    published = fact.at + chance.randrange(260, 380)
    return msgspec.json.encode(
        {
            "version": "0",
            "id": _uuid(chance),
            "detail-type": TOPIC + fact.topic,
            "source": f"aws.partner/genesys.com/cloud/{ORG}/{suffix}",
            "account": "123456789012",
            "time": _iso(published - published % 1000, ""),
            "region": "eu-west-1",
            "resources": [],
            "detail": {
                "topicName": TOPIC.replace("{id}", conversation) + fact.topic,
                "version": "2",
                "eventBody": fact.body,
                "metadata": {"CorrelationId": _uuid(chance)},
                "timestamp": _iso(published, f".{published % 1000:03d}"),
            },
        }
    )


def _iso(milliseconds: int, fraction: str) -> str:
    seconds = milliseconds // 1000
    days, second = divmod(seconds - NINE // 1000 + 9 * 3600, 86_400)
    clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"2026-11-{16 + days:02d}T{clock}{fraction}Z"


def _uuid(chance: random.Random) -> str:
    text = f"{chance.getrandbits(128):032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class Recipe(NamedTuple):
    """A common advice how to recognise copies."""

    name: str
    key: Callable[[dict[str, Any]], str]
    remember: int
    """Milliseconds."""
    atomic: bool = False
    """Whether look and mark are one step, as with SET NX."""
    newest: bool = False
    """Whether a later time for the same key passes."""
    errors_are_copies: bool = False
    """Whether an error of the store is taken for a copy."""


def _whole_detail(event: dict[str, Any]) -> str:
    text = json.dumps(event["detail"], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _conversation(event: dict[str, Any]) -> str:
    return str(event["detail"]["eventBody"]["conversationId"])


def _id(event: dict[str, Any]) -> str:
    return str(event["id"])


RECIPES: Final = (
    Recipe("event.id in a cache for 5 minutes (SET NX)", _id, 300_000, atomic=True),
    Recipe("conversation id for 10 seconds (GET, then SETEX)", _conversation, 10_000),
    Recipe(
        "hash of the detail for 5 minutes, errors count as copies",
        _whole_detail,
        300_000,
        errors_are_copies=True,
    ),
    Recipe("newest event.time per conversation", _conversation, 60_000, newest=True),
)


def effects(recipe: Recipe, deliveries: Sequence[Delivery]) -> Counter[int]:
    """The number of effects of each fact under this recipe."""
    done: Counter[int] = Counter()
    seen: dict[str, tuple[int, str]] = {}
    for arrives, together in groupby(deliveries, key=lambda delivery: delivery.arrives):
        racing = [(delivery, msgspec.json.decode(delivery.event)) for delivery in together]
        passed = list(_looked(recipe, seen, arrives, racing))
        for delivery, event in passed:
            seen[recipe.key(event)] = (arrives + recipe.remember, event["time"])
            if not delivery.crash:
                # The mark is set before the work: a worker that dies here leaves only the mark.
                done[delivery.fact] += 1
    return done


def _looked(
    recipe: Recipe,
    seen: dict[str, tuple[int, str]],
    now: int,
    racing: Sequence[tuple[Delivery, dict[str, Any]]],
) -> Iterator[tuple[Delivery, dict[str, Any]]]:
    here: set[str] = set()
    for delivery, event in racing:
        if delivery.outage:
            # The queue delivers it again; unless the recipe takes the error for a copy and
            # acknowledges it: then the event is lost.
            if recipe.errors_are_copies:
                seen[recipe.key(event)] = (now + recipe.remember, event["time"])
            continue
        key = recipe.key(event)
        until, time = seen.get(key, (0, ""))
        known = now < until and not (recipe.newest and event["time"] > time)
        if known or (recipe.atomic and key in here):
            continue
        here.add(key)
        yield delivery, event
