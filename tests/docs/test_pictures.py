"""The pictures show the behaviour of the code, and are drawn from its present state."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NamedTuple, get_args
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from eventonce.core.ledger import NEWER_WAIT_LEASES, Record, judge, lives, settle
from eventonce.types import Action, Claim, Settlement
from pictures import fact, version
from pictures.__main__ import FOLDER, NAMES, drawn
from pictures.machine import DEAD, DONE, FREE, HELD, NONE

LEASE, MEMORY = 60_000, 1_000_000_000
FACT = Claim(b"k" * 16, 1, LEASE, MEMORY, attempts=2)
VERSION = replace(FACT, order=5, digest=b"five", at=5, unchanged_within=10)
VERSIONS = [
    VERSION,
    replace(VERSION, digest=b"tie"),
    replace(VERSION, order=6, digest=b"six", at=6),
    replace(VERSION, order=6, at=6),
]


class Moment(NamedTuple):
    """A record, the instant, and the claim whose run was granted last."""

    record: Record | None
    now: int
    granted: Claim


def condition(moment: Moment) -> str:
    record = moment.record
    if record is None or not lives(record, moment.now):
        return NONE
    if record.done:
        return DONE
    if moment.now < record.held_until:
        return HELD
    return DEAD if record.trying in record.dead else FREE


def called(record: Record | None, claim: Claim, verdict: str) -> str:
    """The name that the pictures give to this claim on this record."""
    if (
        record is None
        or claim.order is None
        or (claim.order, claim.digest)
        == (
            record.tried,
            record.trying,
        )
    ):
        return "redrive" if claim.redrive and record is not None else "claim"
    if verdict == "unchanged":
        return "the same state"
    return "newer" if claim.order > (record.tried or 0) else "tie"


def steps(moment: Moment, versions: Sequence[Claim]) -> Iterator[tuple[str, Moment]]:
    """All steps that a record can take, and the record after each."""
    record, now, granted = moment
    if record is not None and now < record.held_until:
        yield "the same claim", Moment(judge(record, granted, now)[1] or record, now, granted)
        yield "the lease ends", Moment(record, record.held_until, granted)
    for one in versions:
        for redrive in (False, True):
            claim = replace(one, nonce=granted.nonce + 1, redrive=redrive)
            verdict, written = judge(record, claim, now)
            if written is not None:
                after = Moment(written, now, claim if verdict.kind == "run" else granted)
                yield called(record, claim, verdict.kind), after
    for action in get_args(Action):
        if record is not None:
            settlement = Settlement(granted, record.token, action)
            written = settle(record, settlement, now)[1]
            if written is not None:
                yield action, Moment(written, now, granted)


def reached(versions: Sequence[Claim]) -> Iterator[tuple[Moment, str, Moment]]:
    """Every moment that a few steps lead to, and the steps."""
    layer = [Moment(None, 1, versions[0])]
    for _ in range(6):
        following = {}
        for moment in layer:
            for name, after in steps(moment, versions):
                yield moment, name, after
                following[condition(after), after.record] = after
        layer = list(following.values())


MACHINES = pytest.mark.parametrize(
    ("picture", "versions"), [(fact, [FACT]), (version, VERSIONS)], ids=["fact", "version"]
)


@MACHINES
def test_the_arrows_of_a_state_machine_match_the_law(
    picture: ModuleType, versions: Sequence[Claim]
) -> None:
    edges: dict[tuple[str, str], set[str]] = defaultdict(set)
    for before, name, after in reached(versions):
        edge = condition(before), condition(after)
        if edge[0] != edge[1] or edge in picture.EDGES:
            edges[edge].add(name)
    assert sorted(edges) == sorted(picture.EDGES)
    for edge, names in edges.items():
        words = " ".join(picture.EDGES[edge])
        assert not [name for name in names if name not in words], edge
        drawn_alone = {"release", "return", "bury", "complete", "extend", "redrive", "tie"}
        assert {name for name in drawn_alone if name in words} <= names, edge


@MACHINES
def test_the_boxes_of_a_state_machine_show_the_verdicts_of_a_claim(
    picture: ModuleType, versions: Sequence[Claim]
) -> None:
    got: dict[str, set[str]] = defaultdict(set)
    for _, _, (record, now, granted) in reached(versions):
        other = replace(granted, nonce=granted.nonce + 1)
        if other.order is not None:
            other = replace(other, order=4, digest=b"four")
        for instant in (now, now + NEWER_WAIT_LEASES * LEASE):
            at = condition(Moment(record, instant, granted))
            got[at].add(judge(record, other, instant)[0].kind)
    for at, words in picture.ANSWERS.items():
        assert set(re.findall(r"\w+", words.partition(":")[2])) - {"then"} <= got[at]


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_matches_the_output_of_its_command(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text() == drawn(name), "run `make pictures`"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_needs_no_file_beside_it(name: str) -> None:
    picture = (FOLDER / f"{name}.svg").read_text()
    assert set(re.findall(r"https?://[^\s\"']+", picture)) == {"http://www.w3.org/2000/svg"}
    ET.fromstring(picture)
