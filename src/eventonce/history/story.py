"""The story of a call or of one event, in words: what ran, which copies came, what was given up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from eventonce.core.status import COPIES, DEAD_LETTERS, MEANINGS
from eventonce.history.decision import Decision

EFFECTIVE: Final = frozenset(("done", "unguarded"))

LETTER: Final = "; kept as a dead letter"

WHOSE: Final = {
    True: "under the same transport id: delivered again",
    False: "under another transport id: published again",
    None: "whose transport id nobody can compare",
}


class Chapter(msgspec.Struct, frozen=True):
    """What became of one fact, or of one version of a subject, at one consumer."""

    decisions: Sequence[Decision]
    """In their order; one at least."""
    sentences: Sequence[str]

    @property
    def first(self) -> Decision:
        """The first decision."""
        return self.decisions[0]


def told(decisions: Iterable[Decision]) -> list[Chapter]:
    """The chapters, in the order in which they began."""
    chapters: dict[tuple[object, ...], list[Decision]] = {}
    for number, one in enumerate(decisions):
        # What has no key cannot be told from others: each stands for itself.
        which = (one.consumer, one.key, one.version) if one.key else (number,)
        chapters.setdefault(which, []).append(one)
    return [Chapter(some, _sentences(some)) for some in chapters.values()]


def _sentences(decisions: Sequence[Decision]) -> list[str]:
    began = decisions[0].at
    ran = [one for one in decisions if one.status in EFFECTIVE]
    copies = [one for one in decisions if one.status in COPIES]
    said = _failures(decisions, began)
    said += [_ran(one, began) for one in ran]
    if copies:
        said.append(_copies(copies, began, after=bool(ran)))
    said += [
        f"{one.status} {_at(one.at, began)}: {one.reason}{LETTER}"
        for one in decisions
        if one.status in DEAD_LETTERS
    ]
    said += [f"ignored: {one.reason}" for one in decisions if one.status == "ignored"]
    return said


def _ran(one: Decision, began: int) -> str:
    attempt = f" as attempt {one.attempt}" if one.attempt > 1 else ""
    took = f", in {_span(one.took / 1000)}" if one.took >= 1000 else ""
    received = f", received {_times(one.receives)}" if one.receives > 1 else ""
    through = f", through {one.channel}" if one.channel else ""
    why = f"; not protected: {one.reason}" if one.status == "unguarded" else ""
    when = "" if one.at == began else f" {_at(one.at, began)}"
    return f"ran{when}{attempt} on worker {one.worker}{took}{through}{received}{why}"


def _failures(decisions: Sequence[Decision], began: int) -> list[str]:
    """Each status that must come again, in one sentence with the last of its reasons."""
    found: dict[str, list[Decision]] = {}
    for one in decisions:
        if not MEANINGS[one.status].acknowledged:
            found.setdefault(one.status, []).append(one)
    return [
        f"{status} {_times(len(some))}, the last time {_at(some[-1].at, began)}: {some[-1].reason}"
        for status, some in found.items()
    ]


def _copies(copies: Sequence[Decision], began: int, *, after: bool) -> str:
    many = f"{len(copies)} {'copy' if len(copies) == 1 else 'copies'}{' since' if after else ''}"
    last = copies[-1]
    at = f"{many}, {'the last ' if len(copies) > 1 else ''}{_at(last.at, began)}"
    if last.status != "duplicate":
        return f"{at}, dropped: {last.reason}"
    same = len({one.same_id for one in copies}) == 1 < len(copies)
    return f"{at}, {'all ' if same else ''}{WHOSE[last.same_id]}"


def _at(at: int, began: int) -> str:
    """A moment in a chapter that began then: of the same day the time alone."""
    told, day = moment(at), moment(began)[:10]
    return f"at {told.removeprefix(day).lstrip()}"


def moment(at: int) -> str:
    """A moment as people read it, in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _span(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
