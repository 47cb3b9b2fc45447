"""The story of a call or of an event in words: its runs, its copies, and its dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Final

import msgspec

from eventonce.core.status import COPIES, DEAD_LETTERS, MEANINGS
from eventonce.history.decision import Decision
from eventonce.history.winners import TOOK_EFFECT

LETTER_KEPT: Final = "; kept as a dead letter"
RAN_LATER: Final = "; kept as a dead letter until it ran"

LATENESS_UNITS: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"))
"""The units of a lateness, with their milliseconds."""

ID_WORDS: Final = {
    True: "under the same transport id: delivered again",
    False: "under another transport id: published again",
    None: "whose transport id cannot be compared",
}


class Chapter(msgspec.Struct, frozen=True):
    """The decisions about one fact, or about one version of a subject, at one consumer."""

    decisions: Sequence[Decision]
    """The decisions, oldest first; at least one."""
    sentences: Sequence[str]

    @property
    def first(self) -> Decision:
        """The first decision."""
        return self.decisions[0]


NOTHING_FOUND: Final = (
    "the history has no such decision; a decision is written when the run has ended, up to a "
    "second later: for an event that runs now, use eventonce show FILE"
)
"""The message of a search that finds nothing: the event may still have come."""


def told(decisions: Iterable[Decision], *, whole: bool = False, cut: int = 0) -> list[Chapter]:
    """Return the chapters, in the order of their first decisions. `whole` says that these are all
    decisions about their events (`Search.whole`); `cut` is the time of the earliest decision within
    the limit, before which only runs are among these, and 0 if the limit left none out."""
    chapters: dict[tuple[object, ...], list[Decision]] = {}
    for number, one in enumerate(decisions):
        # Without a key, nothing says which decisions are about the same event.
        which = (one.consumer, one.key, one.version) if one.key else (number,)
        chapters.setdefault(which, []).append(one)
    return [Chapter(some, _sentences(some, whole=whole, cut=cut)) for some in chapters.values()]


def _sentences(decisions: Sequence[Decision], *, whole: bool, cut: int) -> list[str]:
    """Return the sentences, in the order of the last decision that each is about."""
    began = decisions[0].at
    ran = [one for one in decisions if one.status in TOOK_EFFECT]
    copies = [one for one in decisions if one.status in COPIES]
    said = _failures(decisions, began)
    said += [(one.at, _ran(one, began)) for one in ran]
    if copies:
        more = any(one.at <= cut for one in ran)
        sentence = _copies(copies, began, after=bool(ran), more=more)
        said.append((copies[-1].at, sentence if ran else sentence + _unseen(copies, whole=whole)))
    said += [
        (one.at, f"{one.status} {_at(one.at, began)}: {one.reason}{_kept(one, ran)}")
        for one in decisions
        if one.status in DEAD_LETTERS
    ]
    said += [(one.at, f"ignored: {one.reason}") for one in decisions if one.status == "ignored"]
    return [sentence for _, sentence in sorted(said, key=itemgetter(0))]


def _kept(one: Decision, ran: Sequence[Decision]) -> str:
    return RAN_LATER if any(it.at > one.at for it in ran) else LETTER_KEPT


def _ran(one: Decision, began: int) -> str:
    event = f"event {one.id}" if one.id else ""
    attempt = f"attempt {one.attempt}" if one.attempt > 1 else ""
    which = " of ".join(it for it in (attempt, event) if it)
    took = f", in {_span(one.took / 1000)}" if one.took >= 1000 else ""
    received = f", received {_times(one.receives)}" if one.receives > 1 else ""
    through = f", through {one.channel}" if one.channel else ""
    why = f"; not protected: {one.reason}" if one.status == "unguarded" else ""
    when = _at(one.at, began)
    late = f", {lateness(one)}" if lateness(one) else ""
    named = f" as {which}" if which else ""
    return f"ran {when}{named} on worker {one.worker}{took}{through}{received}{late}{why}"


def _failures(decisions: Sequence[Decision], began: int) -> list[tuple[int, str]]:
    """Return one sentence for each status that is not acknowledged, with its last reason."""
    found: dict[str, list[Decision]] = {}
    for one in decisions:
        if not MEANINGS[one.status].acknowledged:
            found.setdefault(one.status, []).append(one)
    return [(some[-1].at, _failed(status, some, began)) for status, some in found.items()]


def _failed(status: str, some: Sequence[Decision], began: int) -> str:
    last = some[-1]
    when = f"{'the last time ' if len(some) > 1 else ''}{_at(last.at, began)}"
    return f"{status} {_times(len(some))}, {when}: {last.reason}"


def _unseen(copies: Sequence[Decision], *, whole: bool) -> str:
    """Return the remark that the run before the copies is not among the decisions. Without it a
    reader would believe that the event never took effect. An older or an unchanged version has no
    run of its own."""
    if any(one.status != "duplicate" for one in copies) or not copies[0].key:
        return ""
    if whole:
        return "; the history does not have the run before"
    shows = f"eventonce history --key {copies[0].key.hex()}"
    return f"; the run before is not shown here: {shows} shows it, if it is still kept"


def _copies(copies: Sequence[Decision], began: int, *, after: bool, more: bool) -> str:
    number = f"{len(copies)}{' or more' if more else ''}"
    noun = "copy" if number == "1" else "copies"
    many = f"{number} {noun}{' since' if after else ''}"
    last = copies[-1]
    at = f"{many}, {'the last ' if len(copies) > 1 else ''}{_at(last.at, began)}"
    if last.status != "duplicate":
        won = f"; event {last.winner} has that version" if last.winner else ""
        return f"{at}, dropped: {last.reason}{won}"
    if last.winner and all(_is_of(one, last.winner) for one in copies):
        at += f", of event {last.winner}"
    same = Counter(one.same_id for one in copies if one.status == "duplicate")
    if len(same) > 1:
        return f"{at}; {'; '.join(f'{number} {ID_WORDS[which]}' for which, number in same.items())}"
    return f"{at}, {'all ' if same.total() == len(copies) > 1 else ''}{ID_WORDS[last.same_id]}"


def _is_of(copy: Decision, winner: str) -> bool:
    """Whether the copy is one of this event, and of no unchanged version."""
    return copy.winner == winner and copy.same_id in (None, copy.id == winner)


def _at(at: int, began: int) -> str:
    """Return the time of a decision; without the date if it is the day on which the chapter
    began."""
    told, day = moment(at), moment(began)[:10]
    return f"at {told.removeprefix(day).lstrip()}"


def lateness(one: Decision) -> str:
    """Return how long after the event's own time the decision was; empty for less than a minute,
    and if the event has no time."""
    behind = one.at - one.happened if one.happened else 0
    for unit, name in LATENESS_UNITS:
        if behind >= unit:
            return f"{behind // unit} {name}{'' if behind // unit == 1 else 's'} late"
    return ""


def moment(at: int) -> str:
    """Return a time as people read it, in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _span(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
