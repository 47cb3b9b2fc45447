"""A source without a preset: its fields, their names and their depth are drawn from the seed, so
that no study can know them beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

from eventonce.study.simulate.traffic import Fact, iso, json, seconds, uuid
from eventonce.study.units import MINUTE, SECOND

NOUNS: Final = """
    ticket order shipment claim visit booking invoice device account lead survey task quote
    case policy payment session campaign asset parcel
""".split()  # noqa: SIM905  words
BOXES: Final = "payload data content record entity resource object info".split()  # noqa: SIM905  words
IDS: Final = ("id", "{}Id", "{}_id", "{}Number", "ref", "{}Ref", "key")
TIMES: Final = ("occurredAt", "changedAt", "eventTime", "updated_at", "timestamp", "when")
STATES: Final = ("status", "state", "phase", "stage", "step")
VERBS: Final = "created assigned accepted paused resumed shipped closed reopened rejected".split()  # noqa: SIM905  words
TRACES: Final = ("traceId", "requestId", "x_trace", "spanId", "messageUuid", "deliveryId")
SENT: Final = ("sentAt", "publishedAt", "emitted", "queuedAt", "relayTime")
FILLERS: Final = ("priority", "channel", "region", "language", "tier", "category", "score")

Value = Callable[[Random], Any]


class _Form(NamedTuple):
    """The form of the source's events: the name of each field."""

    box: str
    id: str
    number: Value
    time: str
    written: Callable[[int], Any]
    state: str
    sequence: str
    """The name of a counter within an entity; empty if only the time orders its events."""
    trace: str
    sent: str
    tries: str
    """The name of a count of publications; empty if there is none."""
    fillers: tuple[str, ...]


class Unknown:
    """One such source, with a few types of the same form."""

    def __init__(self, seed: int) -> None:
        chance = Random(f"unknown {seed}")
        entity, company = chance.sample(NOUNS, 2)
        self.source = f"com.{company}.{entity}s"
        self._form = _drawn(entity, chance)
        self._steps = chance.sample(VERBS, 5)
        style = chance.choice(("{}.{}", "{}_{}", "{} {}"))
        self.types = tuple(style.format(entity, step) for step in self._steps)
        if chance.random() < 0.3:
            self.types = (style.format(entity, "changed"),)
        self._tenant = uuid(chance)

    def second(self) -> str:
        return f"{self.source}.eu"

    def conversation(self, start: int, chance: Random) -> Iterator[Fact]:
        form, now = self._form, start
        number = form.number(chance)
        for sequence in range(1, chance.randrange(2, 9)):
            # Steps return: an entity can be paused and resumed more than once.
            place = chance.randrange(len(self._steps))
            kind = self.types[place % len(self.types)]
            known: dict[str, Any] = {
                form.id: number,
                form.time: form.written(now),
                form.state: self._steps[place],
                **{name: chance.randrange(4) for name in form.fillers},
            }
            if form.sequence:
                known[form.sequence] = sequence
            yield Fact(now, kind, self._detail(known, now, chance.getrandbits(64)))
            now += chance.randrange(2 * SECOND, 20 * MINUTE)

    def _detail(self, known: dict[str, Any], now: int, trace: int) -> Callable[[int, int], bytes]:
        form = self._form

        def detail(emission: int, publication: int) -> bytes:
            told = now + emission + 1_000 * publication
            body: dict[str, Any] = {
                "tenant": self._tenant,
                form.trace: f"{trace ^ (emission << 20) ^ (publication + 1):016x}",
                form.sent: iso(told + 40 + (trace & 0x3F)),
            }
            if form.tries:
                body[form.tries] = publication + 1
            return json({**body, form.box: known} if form.box else {**body, **known})

        return detail


def _drawn(entity: str, chance: Random) -> _Form:
    numbers: tuple[Value, ...] = (
        uuid,
        lambda drawn: drawn.randrange(10**6, 10**9),
        lambda drawn: f"{entity[:3].upper()}-{drawn.randrange(10**7):07d}",
    )
    times: tuple[Callable[[int], Any], ...] = (iso, int)
    sequence = chance.choice(("", "version", "revision", "seq"))
    if sequence:
        # With a counter the time may be coarse, because the counter tells events apart.
        times = (*times, seconds, lambda milliseconds: milliseconds // 1000)
    return _Form(
        chance.choice((*BOXES, "")),
        chance.choice(IDS).format(entity),
        chance.choice(numbers),
        chance.choice(TIMES),
        chance.choice(times),
        chance.choice(STATES),
        sequence,
        chance.choice(TRACES),
        chance.choice(SENT),
        chance.choice(("", "attempt", "tries")),
        tuple(chance.sample(FILLERS, chance.randrange(2, 5))),
    )
