"""A morning of calls with transfers, and the deliveries an at-least-once world makes of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
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
    """Something that happened once, and must take effect once."""

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
    """Whether the worker that takes it dies in the middle of it."""
    outage: bool = False
    """Whether the store cannot be reached when it comes."""


def facts(seed: int = 9) -> list[Fact]:
    """What happened: calls that are queued, rejected, answered, transferred and wrapped up."""
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
    """What arrives: everything, some of it more than once, not in order, and a worker dies."""
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
