"""The history of a store: who asked what and when, and, where no order explains it, a timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from eventonce.testing.linearizability import Answer, Operation, Violation, violation
from eventonce.types import Claim, Verdict

COLUMNS: Final = 40
"""Characters of a timeline between the first call and the last return."""

EVENTS: Final = frozenset(("busy", "completed", "duplicate", "fenced", "open", "takeover"))
"""What every history must have seen: one in which nothing went wrong proves nothing."""


class History:
    """Operations on many keys, as they were recorded."""

    def __init__(self) -> None:
        self.keys: dict[bytes, list[Operation]] = defaultdict(list)

    def add(self, operation: Operation) -> None:
        """Record one operation."""
        self.keys[operation.claim.key].append(operation)

    @property
    def reached(self) -> set[str]:
        """Which of `EVENTS` the clients were told of, or met."""
        return {name for operations in self.keys.values() for it in operations for name in _of(it)}

    def check(self) -> None:
        """Raise an AssertionError with the timeline of the first key that the law does not
        explain."""
        for operations in self.keys.values():
            if found := violation(operations):
                raise AssertionError(timeline(found))


def _of(it: Operation) -> set[str]:
    if it.answer is None:
        return {"open"}
    if isinstance(it.answer, Verdict):
        return {"takeover"} if it.granted and it.answer.attempt > 1 else {it.answer.kind}
    return {"completed" if it.answer == "kept" and it.action == "complete" else it.answer}


def timeline(found: Violation) -> str:
    """The operations of one key, a line each, in the order of their calls.

    Times are milliseconds since the first call; instants and tokens count from the earliest
    instant. The numbers are the places in the longest order that the law explains; those
    that could have come next are followed by what the law says to them.
    """
    operations = found.operations
    start = min(it.called for it in operations)
    end = max(it.returned or it.called for it in operations)
    first = min(it.earliest for it in operations)
    nonces = list(dict.fromkeys(it.claim.nonce for it in operations))
    laws = dict(found.stuck)
    lines = [f"key {operations[0].claim.key.hex()}: {found.reason}", ""]
    for i, it in enumerate(operations):
        place = f"{found.placed.index(i) + 1}." if i in found.placed else ""
        returned = "open" if it.returned is None else f"{(it.returned - start) / 1e6:.2f}"
        lines.append(
            f"{place:>3} {_bar(it, start, end)} {(it.called - start) / 1e6:9.2f} {returned:>9}  "
            f"{it.client:<10} {_asked(it, first, nonces)} -> {_answered(it.answer, first)}"
        )
        lines.extend(f"{'':>78}the law says {_answered(law, first)}" for law in laws.get(i, ()))
    return "\n".join(lines)


def _bar(it: Operation, start: int, end: int) -> str:
    scale = (COLUMNS - 1) / max(1, end - start)
    left = int((it.called - start) * scale)
    if it.returned is None:
        return f"{'':<{left}}|{'':->{COLUMNS - left - 1}}>"
    width = int((it.returned - start) * scale) - left
    return f"{'':<{left}}{'|' if not width else '|' + '-' * (width - 1) + '|':<{COLUMNS - left}} "


def _asked(it: Operation, first: int, nonces: Sequence[int]) -> str:
    number = nonces.index(it.claim.nonce) + 1
    at = f"now=+{it.earliest - first}"
    if it.latest > it.earliest:
        at += f"..{it.latest - first}"
    if not isinstance(it.ask, Claim):
        return f"{it.ask.action} c{number} token=+{it.ask.token - first * 1_000} {at}"
    said = [f"claim c{number} lease={it.ask.lease} attempts={it.ask.attempts}"]
    for name in ("order", "digest", "unchanged_within", "sliding", "redrive", "peek", "alone"):
        value = getattr(it.ask, name)
        if value not in (None, False, 0, b""):
            said.append(f"{name}={value}")
    return " ".join((*said, at))


def _answered(answer: Answer | None, first: int) -> str:
    if not isinstance(answer, Verdict):
        return answer or "?"
    said: list[str] = [answer.kind]
    for field in msgspec.structs.fields(Verdict)[1:]:
        value = getattr(answer, field.name)
        if value != field.default:
            if field.name == "token":
                value = f"+{value - first * 1_000}"
            said.append(f"{field.name}={value}")
    return " ".join(said)
