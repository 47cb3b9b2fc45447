"""NICE CXone: digital cases with their messages, and the states of ACD contacts, sent to a bus by a
relay of the customer."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from eventonce.study.simulate.traffic import Fact, fixed, iso, uuid
from eventonce.study.units import DAY, MINUTE, SECOND

DIGITAL_TYPES: Final = (
    "CaseCreated",
    "CaseStatusChanged",
    "CaseInboxAssigneeChanged",
    "MessageCreated",
    "MessageDeliveryStatusChanged",
)
CONTACT: Final = "CallContactEvent"


class CXone:
    """One tenant: a brand with digital channels, and agents who take calls."""

    def __init__(self, seed: int) -> None:
        chance = Random(f"cxone {seed}")
        self.source = "cxone.relay"
        self.types: tuple[str, ...] = (*DIGITAL_TYPES, CONTACT)
        self._brand = {"id": chance.randrange(1000, 9999), "tenantId": uuid(chance)}
        self._agents = [chance.randrange(10_000, 99_999) for _ in range(40)]

    def second(self) -> str:
        return "cxone.relay-2"

    def conversation(self, start: int, chance: Random) -> Iterator[Fact]:
        yield from self._call(start, chance) if chance.random() < 0.5 else self._case(start, chance)

    def _case(self, now: int, chance: Random) -> Iterator[Fact]:
        thread = uuid(chance)
        case: dict[str, Any] = {"id": str(chance.randrange(10**6, 10**7)), "status": "new"}

        def fact(type: str, **more: Any) -> Fact:
            body = {
                "eventId": uuid(chance),
                "eventObject": "Message" if type.startswith("Message") else "Case",
                "eventType": type,
                "createdAt": iso(now - now % 1000),
                "traceId": uuid(chance),
                "data": {
                    "brand": self._brand,
                    "channel": {"id": "chat_1", "integrationBoxIdentifier": "chat"},
                    "case": {**case, "threadIdOnExternalPlatform": thread},
                    **more,
                },
            }
            return Fact(now, type, fixed(body))

        yield fact("CaseCreated")
        for status in ("open", "pending", "open", "resolved")[: chance.choice((2, 4))]:
            now += chance.randrange(SECOND, 10 * MINUTE)
            case.update(status=status, statusUpdatedAt=iso(now))
            yield fact("CaseStatusChanged")
            agent = {"id": chance.choice(self._agents)}
            yield fact("CaseInboxAssigneeChanged", inboxAssignee=agent)
            for _ in range(chance.randrange(4)):
                now += chance.randrange(SECOND, 3 * MINUTE)
                message = {"id": uuid(chance), "direction": "inbound", "text": "hello"}
                yield fact("MessageCreated", message=message)
                now += chance.randrange(20, SECOND)
                yield fact("MessageDeliveryStatusChanged", message={**message, "status": "seen"})
        if chance.random() < 0.1:
            now += chance.randrange(DAY, 2 * DAY)
            case.update(status="open", statusUpdatedAt=iso(now))
            yield fact("CaseStatusChanged")

    def _call(self, now: int, chance: Random) -> Iterator[Fact]:
        master = chance.randrange(10**17, 10**18)
        for transfer in range(chance.choices((1, 2), (80, 20))[0]):
            contact = str(master + transfer)
            steps = [("Ringing", False), ("Active", False)]
            if chance.random() < 0.3:
                steps += [("Holding", False), ("Active", False)]
            # Disconnected comes twice: at the end of the call, and of the after-call work.
            for status, final in [*steps, ("Disconnected", False), ("Disconnected", True)]:
                now += chance.randrange(SECOND, 2 * MINUTE)
                body = {
                    "Type": CONTACT,
                    "contactId": contact,
                    "masterId": str(master),
                    "agentId": chance.choice(self._agents),
                    "status": status,
                    "finalState": final,
                    "lastStateChangeTimeUtc": iso(now),
                    "ani": f"+1555{chance.randrange(10_000_000):07d}",
                }
                yield Fact(now, CONTACT, fixed(body))
