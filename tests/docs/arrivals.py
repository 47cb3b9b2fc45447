"""The arrivals of each table of docs/recipes.md, row by row."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from tests.rows.outcomes import at
from tests.rows.relayed import relayed
from tests.rows.row import bridge, detail_event

SECOND = 1_772_530_245.0
"""The first second of a minute is fifteen before it."""


class Arrival(NamedTuple):
    """An event as it is delivered, and the faults at that moment."""

    label: str
    """The word in backquotes that begins the row's text."""
    event: dict[str, Any]
    meanwhile: bool = False
    """Whether the event comes while the event before it is being decided on."""
    restarted: bool = False
    """Whether the process was started anew before the event."""
    crm_down: bool = False
    killed: bool = False
    store_away: bool = False


class Case(NamedTuple):
    """One table: its place on the page, and its arrivals."""

    section: str
    table: int
    arrivals: list[Arrival]
    under: tuple[str, ...] = ("shown",)
    """The rules of the last column: the rules on top of the page, or the section's TOML."""


def agent_leaves(id: str, **body: Any) -> dict[str, Any]:
    return {**detail_event("user.end", **body), "id": id}


def published_again(id: str, **detail: Any) -> dict[str, Any]:
    """The same fact of a second publish: another id, time and correlation."""
    event = copy.deepcopy(agent_leaves(id))
    event["time"] = "2026-03-05T17:00:09Z"
    event["detail"]["metadata"]["CorrelationId"] = f"{id}-archival"
    event["detail"].update(detail)
    return event


def status(id: str, status: str, later: float = 0) -> dict[str, Any]:
    detail = {"conversationId": "c-1", "status": status, "timestamp": SECOND + later}
    return relayed("conversation:call:status", detail, id=id)


def interaction(id: str, state: str, second: int) -> dict[str, Any]:
    detail = {"interactionId": "i-1", "state": state}
    time = f"2026-03-03T09:{30 + second // 60:02}:{second % 60:02}Z"
    return relayed("interaction", detail, id=id, time=time)


def bench(id: str, status: str, later: float) -> dict[str, Any]:
    detail = {"conversationId": "c-1", "timestamp": SECOND + later, "data": {"status": status}}
    return bridge("com.mycompany.test", "TestEvent", detail, id=id)


def closing(id: str, /, **detail: Any) -> dict[str, Any]:
    return relayed("interaction.analytics.contact", detail, id=id)


def routed(id: str, state: str, millisecond: int) -> dict[str, Any]:
    detail = {"interaction-id": "i-1", "state": state, "timestamp": at(1, millisecond)}
    return relayed("interaction.routing.update", detail, id=id)


def ended(id: str, /, **detail: Any) -> dict[str, Any]:
    return relayed("Conversation Status Change", {"status": "ended", **detail}, id=id)


def call(id: str, /, **detail: Any) -> dict[str, Any]:
    return relayed("conversation:call:status", {"conversationId": "c-1", **detail}, id=id)


A = Arrival("a", agent_leaves("a"))
B = Arrival("b", published_again("b"))
HELD = Arrival("held", {"payload": {"interactionId": "i-1", "state": "held"}})
ONE = Arrival("one", {"IdempotencyKey": "${id}", "Source": "genesys-cloud", "call": 1})
ELSEWHERE = {**agent_leaves("b", conversationId="another"), "time": "2026-03-03T09:30:46Z"}

CASES = [
    Case("event.id in a set", 0, [A, A, B, A._replace(restarted=True)]),
    Case(
        "event.id for five minutes",
        0,
        [A, A._replace(meanwhile=True), A, B, Arrival("c", published_again("c"))],
    ),
    Case(
        "event.id for five minutes",
        1,
        [
            Arrival(name, bench(name, "connected", later))
            for name, later in (("a", 0), ("b", 0.5), ("c", 1))
        ],
    ),
    Case("Look, then mark", 0, [A, A._replace(meanwhile=True), A]),
    Case("Mark, then work", 0, [A._replace(crm_down=True), A, A]),
    Case("Mark, then die", 0, [A._replace(killed=True), A, A]),
    Case(
        "The conversation for ten seconds",
        0,
        [
            Arrival("a", status("a", "connected")),
            *[Arrival("b", status("b", "held", 3))] * 3,
        ],
    ),
    Case(
        "The first id there is",
        0,
        [
            HELD,
            Arrival("ended", {"payload": {"interactionId": "i-1", "state": "ended"}}),
            HELD,
            Arrival("other", {"light": "green"}),
        ],
    ),
    Case(
        "The newest of an interaction",
        0,
        [
            Arrival("a", interaction("a", "queued", 45)),
            Arrival("b", interaction("b", "alerting", 45)),
            Arrival("c", interaction("c", "connected", 47)),
            Arrival("d", interaction("d", "held", 46)),
            Arrival("c", interaction("c", "connected", 47)),
            Arrival("e", interaction("e", "connected", 60)),
        ],
    ),
    Case(
        "The newest of an interaction",
        1,
        [
            Arrival("a", {**detail_event("acd.end"), "id": "a", "time": "2026-03-03T09:30:47Z"}),
            Arrival("b", ELSEWHERE),
        ],
    ),
    Case(
        "An id, or three fields",
        0,
        [
            Arrival("a", call("a", id="c-1", state="connected")),
            Arrival("b", call("b", id="c-1", state="held")),
            Arrival("a", call("a", id="c-1", state="connected")),
            *[Arrival("c", call("c", state="connected", timestamp=SECOND))] * 2,
            Arrival("d", agent_leaves("d")),
        ],
    ),
    Case(
        "Within half a second",
        0,
        [
            Arrival("a", status("a", "connected")),
            Arrival("b", status("b", "connected", 0.3)),
            Arrival("c", status("c", "held", 0.4)),
            Arrival("d", status("d", "connected", 0.7)),
            Arrival("a", status("a", "connected")),
        ],
        under=("shown", "toml"),
    ),
    Case(
        "A hash of the detail",
        0,
        [A, A, B, Arrival("c", published_again("c", timestamp="2026-03-05T17:00:09.120Z"))],
        under=("shown", "toml"),
    ),
    Case(
        "A hash for each type",
        0,
        [
            Arrival("a", closing("a", **{"interaction-id": "i-1", "handled": 41})),
            Arrival("b", closing("b", **{"interaction-id": "i-1", "handled": 42})),
            Arrival("c", closing("c", handled=43)),
            Arrival("d", closing("d", handled=44)),
            Arrival("e", routed("e", "QUEUED", 100)),
            Arrival("f", routed("f", "QUEUED", 900)),
            Arrival("g", routed("g", "CONNECTED", 900)),
        ],
    ),
    Case("An error is a copy", 0, [A._replace(store_away=True), A]),
    Case(
        "Log it and answer 200",
        0,
        [
            A,
            Arrival("b", agent_leaves("b", sessionId="another"), crm_down=True),
            A,
            Arrival("b", agent_leaves("b", sessionId="another")),
        ],
    ),
    Case(
        "event_id from the detail",
        0,
        [
            Arrival("a", ended("a", event_id="evt-1", conversation_id="c-1")),
            Arrival("a", ended("a", event_id="evt-1", conversation_id="c-1"), meanwhile=True),
            Arrival("b", ended("b", event_id="evt-1", conversation_id="c-2")),
            Arrival("c", ended("c", conversation_id="c-3")),
        ],
    ),
    Case(
        "An IdempotencyKey template",
        0,
        [ONE, ONE, Arrival("two", {**ONE.event, "call": 2})],
    ),
    Case("A window that slides", 0, [A] * 5, under=("toml",)),
    Case(
        "The conversation and the minute",
        0,
        [
            Arrival("a", bench("a", "connected", 0)),
            Arrival("b", bench("b", "connected", 9)),
            Arrival("c", bench("c", "held", 10)),
            Arrival("d", bench("d", "connected", 70)),
        ],
    ),
]
