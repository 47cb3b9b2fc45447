"""Health: one sentence about store, worker and history, with the worst fault first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from eventonce.core.ports import Stats
from eventonce.core.status import FAILURES
from eventonce.history.summary import GROUP_OF
from eventonce.markup import Highlight, Sentence, counted, number, share

HEALTH_SPAN: Final = 10
"""Minutes that the sentence is about."""

FAILED_SHARE: Final = 0.05
"""The share of failed runs above which the health is bad."""

BUSY_SHARE: Final = 0.5
"""The share of busy events above which the health is bad."""


class Seen(msgspec.Struct, frozen=True):
    """The facts behind the sentence."""

    recent: Mapping[str, int] = {}
    """Decisions of the last ten minutes, by status."""
    given_up_before: int = 0
    """The number of these decisions that are about copies of events that were given up."""
    rate: float | None = None
    """Events a second, now; None while unknown."""
    no_history: bool = False
    history_fault: str = ""
    store_fault: str = ""
    stats: Stats | None = None
    queue: bool = False
    """Whether dead letters are kept in a queue, so that the store does not count them."""
    worker_fault: str = ""


class Health(msgspec.Struct, frozen=True):
    """The sentence, and whether somebody should act."""

    sentence: Sentence
    harm: bool = False

    @property
    def state(self) -> str:
        """The state in short; unlike the sentence, it changes seldom."""
        return "Trouble" if self.harm else "No trouble"


def health(seen: Seen) -> Health:
    """Return the health that these facts show."""
    waiting = seen.stats.letters if seen.stats is not None else 0
    letters = f"{counted(waiting, 'dead letter')} {'waits' if waiting == 1 else 'wait'}"
    for fault in (seen.store_fault, seen.worker_fault, seen.history_fault):
        if fault:
            return _bad_health(fault)
    if seen.no_history:
        said = " No history is kept, so no rates are known."
        return Health((Highlight("The store answers."), said, f" {letters}." if waiting else ""))
    total = sum(seen.recent.values())
    groups = dict.fromkeys(GROUP_OF.values(), 0)
    for status, many in seen.recent.items():
        groups[GROUP_OF[status]] += many
    # A copy of an event that was given up makes no new dead letter. The rest counts deliveries: an
    # invalid event ends as a dead letter each time that it comes. The difference may be negative,
    # because the two numbers are read one after the other.
    groups["dead letters"] = max(0, groups["dead letters"] - seen.given_up_before)
    if waiting == 0 and seen.stats is not None and not seen.queue:
        # All dead letters have been redriven or dropped since.
        groups["dead letters"] = 0
    trouble = _trouble(seen.recent, groups, total)
    if trouble:
        return _bad_health(trouble, f" {letters}." if waiting else "")
    if not total:
        quiet = f"Nothing was decided in the last {HEALTH_SPAN} minutes."
        return Health((Highlight("Quiet."), f" {quiet}", f" {letters}." if waiting else ""))
    copies = f"{share(groups['copies'], total)} copies"
    failures = _failures(seen.recent)
    failed = f"{counted(failures, 'failure')} to be tried again" if failures else "no failure"
    now = f" {number(round(seen.rate, 1))} events a second now." if seen.rate is not None else ""
    said = f"{now} In the last {HEALTH_SPAN} minutes {counted(total, 'event')}, {copies}, {failed}."
    return Health((Highlight("Healthy."), said, f" {letters}." if waiting else ""))


def _failures(recent: Mapping[str, int]) -> int:
    return sum(recent.get(status, 0) for status in FAILURES)


def _trouble(recent: Mapping[str, int], groups: Mapping[str, int], total: int) -> str:
    failed = _failures(recent)
    runs = failed + groups["ran"]
    since = f"in the last {HEALTH_SPAN} minutes."
    if groups["dead letters"]:
        many = groups["dead letters"]
        letters = "a dead letter" if many == 1 else "dead letters"
        return f"{counted(many, 'delivery', 'deliveries')} ended as {letters} {since}"
    if recent.get("fenced"):
        many = recent["fenced"]
        effects = "Its effect" if many == 1 else "Their effects"
        return (
            f"{counted(many, 'run')} outlived the lease {since} {effects} may have happened twice."
        )
    if failed > FAILED_SHARE * runs:
        return f"{number(failed)} of {counted(runs, 'run')} failed {since}"
    if recent.get("busy", 0) > BUSY_SHARE * total:
        return f"{number(recent['busy'])} of {counted(total, 'event')} were busy {since}"
    if total and recent.get("ignored", 0) == total:
        return f"All {counted(total, 'event')} were ignored {since} No handler takes their types."
    if recent.get("unguarded"):
        return f"{counted(recent['unguarded'], 'event')} ran unprotected {since}"
    return ""


def _bad_health(said: str, more: str = "") -> Health:
    return Health((Highlight(said, harm=True), more), harm=True)
