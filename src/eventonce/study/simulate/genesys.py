"""Genesys Cloud: conversations from the first ring to the last wrap-up, and the agents' states, in
the shapes that Genesys publishes over EventBridge."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from eventonce.study.simulate.traffic import Fact, iso, json, uuid
from eventonce.study.units import DAY, HOUR, MINUTE, SECOND

DETAIL: Final = "v2.detail.events.conversation.{id}."
TRANSCRIPTION: Final = "v2.conversations.{id}.transcription"
PRESENCE: Final = "v2.users.{id}.presence"
ROUTING: Final = "v2.users.{id}.routingStatus"
ACTIVITY: Final = "v2.users.{id}.activity"
MEMBER: Final = "v2.routing.queues.{id}.users"
METRICS: Final = "v2.analytics.conversation.{id}.metrics"
AUDIT: Final = "v2.audits.entitytype.{id}.entityid.{id}"

TOPIC_ENDINGS: Final = """
    customer.start customer.end flow.start flow.end flow.outcome acd.start acd.end
    user.start user.end acw wrapup contact attributes voicemail.start voicemail.end
""".split()  # noqa: SIM905  words
MEDIA: Final = {"VOICE": "calls", "MESSAGE": "messages", "EMAIL": "emails", "CHAT": "chats"}
PRESENCES: Final = ("AVAILABLE", "BREAK", "MEAL", "BUSY", "AWAY")
WORDS: Final = "thank you for calling how can I help with the bill".split()  # noqa: SIM905  words
AGENTS: Final = 60
QUEUES: Final = 8
LAG: Final = (262, 379)
"""Milliseconds from an event to its notice, as in captures of detail events."""


class Genesys:
    """One organisation: its queues, its agents, and their conversations."""

    def __init__(self, seed: int) -> None:
        chance = Random(f"genesys {seed}")
        self._org = uuid(chance)
        self.source = f"aws.partner/genesys.com/cloud/{self._org}/crm"
        self.types = (
            *(DETAIL + ending for ending in TOPIC_ENDINGS),
            *(f"v2.users.{{id}}.conversations.{kind}" for kind in MEDIA.values()),
            *(TRANSCRIPTION, PRESENCE, ROUTING, ACTIVITY, MEMBER, METRICS, AUDIT),
        )
        self._queues = [uuid(chance) for _ in range(QUEUES)]
        self._agents = [uuid(chance) for _ in range(AGENTS)]
        self._flows = [uuid(chance) for _ in range(4)]
        self._presences = {name: uuid(chance) for name in PRESENCES}
        self._division = uuid(chance)

    def second(self) -> str:
        """Return the source of a second integration of the same organisation."""
        return f"{self.source.rpartition('/')[0]}/reporting"

    def conversation(self, start: int, chance: Random) -> Iterator[Fact]:
        """Yield the facts of one conversation that begins at this instant."""
        media = chance.choices(tuple(MEDIA), (60, 22, 10, 8))[0]
        call = _Conversation(self, media, start, chance)
        yield from call.arrival()
        if media == "VOICE" and chance.random() < 0.06:
            yield from call.voicemail()
        else:
            for visit in range(chance.choices((1, 2, 3), (70, 24, 6))[0]):
                yield from call.queue_visit(transferred=visit > 0)
        yield from call.end()
        if media == "MESSAGE" and chance.random() < 0.3:
            # The same conversation is opened again, hours later: after-call work is repeated.
            call.now += chance.randrange(HOUR, DAY)
            yield from call.queue_visit(transferred=False)
        if chance.random() < 0.2:
            yield from self._shift(start, chance)
        if chance.random() < 0.05:
            yield self._audit(start, chance)

    def _shift(self, now: int, chance: Random) -> Iterator[Fact]:
        """Yield the states of an agent who leaves and returns, and perhaps joins a queue again."""
        agent = chance.choice(self._agents)
        away = chance.choice(PRESENCES[1:])
        for name in (away, "AVAILABLE", away, "AVAILABLE")[: chance.choice((2, 4))]:
            now += chance.randrange(2 * SECOND, 20 * MINUTE)
            yield self._presence(agent, name, now, chance)
            yield self._activity(agent, "OFF_QUEUE" if name == away else "IDLE", name, now, chance)
        if chance.random() < 0.4:
            queue = chance.choice(self._queues)
            for joined in (False, True):
                now += chance.randrange(SECOND, HOUR)
                body = {"id": agent, "user": {"id": agent}, "queueId": queue, "joined": joined}
                yield notice(MEMBER, (queue,), body, now, chance)

    def _presence(self, agent: str, name: str, now: int, chance: Random) -> Fact:
        lag, correlation = chance.randrange(20, 900), chance.getrandbits(64)
        definition = {"id": self._presences[name], "systemPresence": name}

        def detail(emission: int, _publication: int) -> bytes:
            body = {
                "source": "PURECLOUD",
                "presenceDefinition": definition,
                "primary": True,
                "message": "",
                "modifiedDate": iso(now + emission),
            }
            return _message(PRESENCE, (agent,), json(body), now + lag + emission, correlation)

        return Fact(now, PRESENCE, detail)

    def routing_status(self, agent: str, status: str, now: int, chance: Random) -> Fact:
        """Return the routing status of an agent; a double emission has another start time."""
        lag, correlation = chance.randrange(20, 900), chance.getrandbits(64)

        def detail(emission: int, _publication: int) -> bytes:
            routing = {"status": status, "startTime": iso(now + emission)}
            body = json({"id": agent, "routingStatus": routing})
            return _message(ROUTING, (agent,), body, now + lag + emission, correlation)

        return Fact(now, ROUTING, detail)

    def _activity(self, agent: str, status: str, name: str, now: int, chance: Random) -> Fact:
        body = {
            "id": agent,
            "routingStatus": {"status": status, "startTime": iso(now)},
            "presence": {
                "presenceDefinition": {"id": self._presences[name], "systemPresence": name},
                "presenceMessage": "",
                "modifiedDate": iso(now),
            },
            "outOfOffice": {"active": False, "modifiedDate": iso(now - now % DAY - 9 * DAY)},
            "activeQueueIds": self._queues[:2],
            "dateActiveQueuesChanged": iso(now - now % DAY),
        }
        return notice(ACTIVITY, (agent,), body, now, chance)

    def _audit(self, now: int, chance: Random) -> Fact:
        user = chance.choice(self._agents)
        body = {
            "id": uuid(chance),
            "userId": chance.choice(self._agents),
            "userHomeOrgId": self._org,
            "serviceName": "PeoplePermissions",
            "eventTime": iso(now - now % 1000),
            "action": chance.choice(("Update", "Delete", "Create")),
            "entityType": "User",
            "entity": {"id": user, "name": f"Agent {user[:4]}"},
            "propertyChanges": [{"property": "roles", "newValues": [uuid(chance)]}],
        }
        return notice(AUDIT, ("User", user), body, now, chance)

    def pick(self, chance: Random) -> tuple[str, str, str, str]:
        """Return a queue, an agent, a flow and the division."""
        return (
            chance.choice(self._queues),
            chance.choice(self._agents),
            chance.choice(self._flows),
            self._division,
        )


class _Conversation:
    """One conversation; `now` is the instant that it has reached."""

    def __init__(self, traffic: Genesys, media: str, start: int, chance: Random) -> None:
        self.now = start
        self._traffic = traffic
        self._chance = chance
        self._media = media
        self._id = uuid(chance)
        self._caller = (uuid(chance), uuid(chance))
        self._contact = uuid(chance)
        self._ani = f"tel:+1555{chance.randrange(10_000_000):07d}"

    def _wait(self, least: int, most: int) -> None:
        self.now += self._chance.randrange(least, most)

    def _fact(self, ending: str, whose: tuple[str, str], **more: Any) -> Fact:
        body = {
            "eventTime": self.now,
            "conversationId": self._id,
            "participantId": whose[0],
            "sessionId": whose[1],
            "mediaType": self._media,
            "provider": "Edge",
            "direction": "INBOUND",
            "ani": self._ani,
            "dnis": "tel:+15555550000",
            **more,
            "conversationExternalContactIds": [self._contact],
        }
        return notice(DETAIL + ending, (self._id,), body, self.now, self._chance)

    def arrival(self) -> Iterator[Fact]:
        """Yield the facts of the customer's arrival and of the flow."""
        *_, flow, division = self._traffic.pick(self._chance)
        yield self._fact("customer.start", self._caller)
        yield self._attributes({"language": "en", "Step": "greeting"})
        ivr = (uuid(self._chance), uuid(self._chance))
        flown = {"flowType": "INBOUNDCALL", "flowId": flow, "flowVersion": "7.0"}
        self._wait(50, 900)
        began = self.now
        yield self._fact("flow.start", ivr, divisionId=division, **flown)
        for number in range(self._chance.choices((0, 1, 2), (50, 40, 10))[0]):
            self._wait(SECOND, 20 * SECOND)
            outcome = {"flowOutcomeId": f"{flow[:-2]}{number:02x}", "flowOutcomeValue": "SUCCESS"}
            times = {"flowOutcomeStartTime": began, "flowOutcomeEndTime": self.now}
            yield self._fact("flow.outcome", ivr, **flown, **outcome, **times)
        if self._chance.random() < 0.5:
            yield self._fact("contact", self._caller, externalContactId=self._contact)
        self._wait(SECOND, 40 * SECOND)
        ended = {"exitReason": "TRANSFER", "connectedDurationMs": self.now - began}
        yield self._fact("flow.end", ivr, disconnectType="TRANSFER", **flown, **ended)

    def queue_visit(self, *, transferred: bool) -> Iterator[Fact]:
        """Yield the facts of a visit to a queue: agents who reject the call, and one who
        answers."""
        chance = self._chance
        queue, _, _, division = self._traffic.pick(chance)
        waiting = (uuid(chance), uuid(chance))
        self._wait(100, 2 * SECOND)
        yield self._fact(
            "acd.start", waiting, queueId=queue, divisionId=division, routingPriority=40
        )
        while chance.random() < 0.12:
            yield from self._alerted(queue)
        self._wait(500, 40 * SECOND)
        _, agent, *_ = self._traffic.pick(chance)
        whose, began = (uuid(chance), uuid(chance)), self.now
        yield self._fact("user.start", whose, userId=agent, queueId=queue)
        yield self._traffic.routing_status(agent, "INTERACTING", self.now, chance)
        yield self._fact(
            "acd.end",
            waiting,
            queueId=queue,
            acdOutcome="ANSWERED",
            answeredUserId=agent,
            disconnectType="TRANSFER",
        )
        yield self._snapshot(agent, "connected")
        if self._media == "VOICE":
            yield from self._transcription(whose[1])
        if chance.random() < 0.1:
            yield from self._consult()
        if chance.random() < 0.15:
            for state in ("held", "connected"):
                self._wait(SECOND, 2 * MINUTE)
                yield self._snapshot(agent, state)
        self._wait(5 * SECOND, 8 * MINUTE)
        yield self._attributes({"language": "en", "Step": "agent", "transferred": str(transferred)})
        yield self._fact(
            "user.end",
            whose,
            userId=agent,
            queueId=queue,
            disconnectType="PEER",
            interactingDurationMs=self.now - began,
        )
        yield self._snapshot(agent, "disconnected")
        yield self._metric(whose[1], "tTalk", self.now - began)
        self._wait(SECOND, 40 * SECOND)
        code, worked = f"wrapup-{chance.randrange(9)}", chance.randrange(40_000)
        for ending in ("acw", "wrapup"):
            yield self._fact(ending, whose, queueId=queue, wrapupCode=code, wrapupDurationMs=worked)
            self.now += 1
        yield self._traffic.routing_status(agent, "IDLE", self.now, chance)

    def _alerted(self, queue: str) -> Iterator[Fact]:
        """Yield the facts of an agent who does not answer: the call stays in the queue."""
        _, agent, *_ = self._traffic.pick(self._chance)
        whose = (uuid(self._chance), uuid(self._chance))
        self._wait(500, 9 * SECOND)
        yield self._fact("user.start", whose, userId=agent, queueId=queue)
        self._wait(2 * SECOND, 15 * SECOND)
        yield self._fact("user.end", whose, userId=agent, queueId=queue, disconnectType="CLIENT")
        yield self._traffic.routing_status(agent, "NOT_RESPONDING", self.now, self._chance)

    def _consult(self) -> Iterator[Fact]:
        _, agent, *_ = self._traffic.pick(self._chance)
        whose = (uuid(self._chance), uuid(self._chance))
        self._wait(SECOND, MINUTE)
        yield self._fact("user.start", whose, userId=agent)
        self._wait(SECOND, 3 * MINUTE)
        yield self._fact("user.end", whose, userId=agent, disconnectType="TRANSFER")

    def _transcription(self, communication: str) -> Iterator[Fact]:
        began, chance = self.now, self._chance
        spoken = chance.choices((0, 2, 5), (60, 30, 10))[0]
        for number in range(spoken + 1 if spoken else 0):
            self._wait(800, 9 * SECOND)
            last = number == spoken
            status = "SESSION_ENDED" if last else "SESSION_ONGOING"
            body: dict[str, Any] = {
                "eventTime": iso(self.now),
                "conversationId": self._id,
                "communicationId": communication,
                "sessionStartTimeMs": began,
                "status": {"offsetMs": self.now - began, "status": status},
            }
            if not last:
                body["transcripts"] = [self._utterance(self.now - began)]
            yield notice(TRANSCRIPTION, (self._id,), body, self.now, chance, lag=(0, 1))

    def _utterance(self, offset: int) -> dict[str, Any]:
        said = " ".join(self._chance.choices(WORDS, k=self._chance.randrange(2, 9)))
        heard = {"confidence": 0.93, "offsetMs": offset, "durationMs": 900, "transcript": said}
        return {
            "utteranceId": uuid(self._chance),
            "isFinal": True,
            "channel": self._chance.choice(("INTERNAL", "EXTERNAL")),
            "alternatives": [heard],
            "engineProvider": "GENESYS",
            "dialect": "en-US",
        }

    def _snapshot(self, agent: str, state: str) -> Fact:
        """Return the whole conversation as one agent sees it, without a version or a time."""
        participants = [
            {"id": self._caller[0], "purpose": "customer", "state": "connected"},
            {"id": agent, "purpose": "agent", "state": state, "user": {"id": agent}},
        ]
        body = {"id": self._id, "participants": participants, "recordingState": "none"}
        kind = f"v2.users.{{id}}.conversations.{MEDIA[self._media]}"
        return notice(kind, (agent,), body, self.now, self._chance)

    def _metric(self, session: str, metric: str, value: int) -> Fact:
        body = {
            "metric": metric,
            "metricDate": iso(self.now),
            "value": value,
            "recordId": uuid(self._chance),
            "conversationId": self._id,
            "sessionId": session,
            "mediaType": self._media.lower(),
            "direction": "inbound",
        }
        return notice(METRICS, (self._id,), body, self.now, self._chance)

    def _attributes(self, attributes: dict[str, str]) -> Fact:
        body = {
            "conversationId": self._id,
            "participantId": self._caller[0],
            "eventTime": self.now,
            "communications": [{"id": self._caller[1], "mediaType": self._media}],
            "attributes": {"ANI": self._ani, **attributes},
        }
        return notice(DETAIL + "attributes", (self._id,), body, self.now, self._chance)

    def voicemail(self) -> Iterator[Fact]:
        """Yield the facts of a caller who leaves a message because nobody answers."""
        queue, agent, *_ = self._traffic.pick(self._chance)
        whose = (uuid(self._chance), uuid(self._chance))
        self._wait(SECOND, MINUTE)
        yield self._fact("voicemail.start", whose, userId=agent, queueId=queue)
        self._wait(3 * SECOND, MINUTE)
        yield self._fact("voicemail.end", whose, userId=agent, queueId=queue)

    def end(self) -> Iterator[Fact]:
        """Yield the facts of the customer's end."""
        self._wait(10, 5 * SECOND)
        yield self._fact("customer.end", self._caller, disconnectType="PEER")


def notice(
    type: str,
    ids: tuple[str, ...],
    body: dict[str, Any],
    at: int,
    chance: Random,
    lag: tuple[int, int] = LAG,
) -> Fact:
    """Return a notice whose second emission has the same body, and another time of the notice."""
    encoded, correlation = json(body), chance.getrandbits(64)
    told = at + chance.randrange(*lag)

    def detail(emission: int, _publication: int) -> bytes:
        return _message(type, ids, encoded, told + emission, correlation)

    return Fact(at, type, detail)


def _message(type: str, ids: tuple[str, ...], body: bytes, told: int, correlation: int) -> bytes:
    """Return the notice that is queued for publishing: every publication has the same bytes, but a
    second emission is a new notice with its own correlation id."""
    topic = type
    for one in ids:
        topic = topic.replace("{id}", one, 1)
    trace = f"{correlation:016x}-{told & 0xFFFF:04x}"
    return (
        b'{"topicName":"%b","version":"2","eventBody":%b,"metadata":{"CorrelationId":"%b"},"timestamp":"%b"}'
        % (
            topic.encode(),
            body,
            trace.encode(),
            iso(told).encode(),
        )
    )
