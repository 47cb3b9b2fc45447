"""The recipes people are given, played against the morning's deliveries with a clock of their own.

Each is told in two steps, a look and a mark, because between the two the other worker looks.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.demo.morning import Delivery


class Recipe(NamedTuple):
    """A way to tell copies, as it is commonly advised."""

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
    """How often each fact took effect under this recipe."""
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
            # No answer from the store: given back to the queue, which brings it again; or taken for
            # a copy and acknowledged, so that what would have come again never does.
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
