"""Helpers that many tests share: events and rules of calls, and the command line in this process.

The fixture `run` of `tests/conftest.py` gives a `Run`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from eventonce import Job, Outcome, Reject, Rule
from eventonce.cli import main
from eventonce.errors import StoreUnavailable
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

PATIENCE = 240
"""Seconds after which a test gives up waiting: on a quiet machine nothing takes ten."""


def until(holds: Callable[[], object], otherwise: Callable[[], object] = str) -> None:
    """Wait until a condition holds; `otherwise` describes the state if it never does."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"waited for in vain: {otherwise()}"
        time.sleep(0.01)


class Result(NamedTuple):
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[Any]:
        """The JSON documents of stdout, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]
"""Runs a command by its words."""


def runner(captured: pytest.CaptureFixture[bytes]) -> Run:
    """Runs commands in this process and the current folder."""

    def run(*args: str | Path) -> Result:
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in args])
        out, err = captured.readouterr()
        return Result(int(stop.value.code or 0), out.decode(), err.decode())

    return run


def ruled(**fields: Any) -> Rule:
    """The rule for `call`, with other fields if some are given."""
    return Rule(**{"name": "call", "match": "call", "key": ["detail.call"], **fields})


def call(number: int, *, id: str | None = None, type: str = "call", **detail: Any) -> bytes:
    """An event about this call, whose id is the number's unless another is given."""
    event = {
        "id": f"id-{number}" if id is None else id,
        "detail-type": type,
        "detail": {"call": number, **detail},
    }
    return msgspec.json.encode(event)


def audit_of(file: Path) -> list[dict[str, Any]]:
    """The audit lines of the actions that have ended; each has a line that says that it began."""
    begun: dict[str, dict[str, Any]] = {}
    ended = []
    for text in file.read_text().splitlines():
        line = msgspec.json.decode(text)
        if line["ended"] == "begun":
            begun[line["id"]] = line
            continue
        ended.append(line)
        first = begun.pop(line["id"])
        assert first == line | {"time": first["time"], "counts": {}, "ended": "begun"}
    return ended


def statuses(outcomes: Iterable[Outcome]) -> list[str]:
    """The status of each outcome, in their order."""
    return [outcome.status for outcome in outcomes]


def reject(_: Job) -> None:
    """A handler that gives every event up."""
    raise Reject("no such customer")


Look = Callable[[str, Sequence[Any]], Any]
"""The observer of a call of a store: gets its verb and items; may note, delay or answer it."""


def away(*verbs: str, error: Exception | None = None, times: int = 1_000) -> Look:
    """A store that cannot be reached for these verbs, so many times."""
    left = iter(range(times))

    def look(verb: str, _: Sequence[Any]) -> None:
        if verb in verbs and next(left, None) is not None:
            raise error or StoreUnavailable("away")

    return look


def is_probe(claim: Claim) -> bool:
    """Whether this claim is of no event: a peek, or a trial of the store."""
    return claim.peek or claim.remember == 1


def full() -> Look:
    """A store that takes no write, such as a store on a full disk, and answers reads."""

    def look(verb: str, asked: Sequence[Any]) -> None:
        if verb == "settle" or (verb == "claim" and not all(claim.peek for claim in asked)):
            raise StoreUnavailable("full")

    return look


class WatchedStore(MemoryStore):
    """A memory store whose calls an observer sees first."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        return self.look("claim", claims) or super().claim(claims, now)

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        return self.look("settle", settlements) or super().settle(settlements, now)

    def put_letters(self, letters: Sequence[Letter]) -> None:
        self.look("put_letters", letters)
        super().put_letters(letters)

    def drop_letters(self, ids: Sequence[str], before: int | None = None) -> int:
        self.look("drop_letters", ids)
        return super().drop_letters(ids, before)

    def show(self, key: bytes) -> Any:
        self.look("show", [key])
        return super().show(key)


def write_lines(path: Path, *events: Any) -> Path:
    """A file with one event a line; text is written as it is."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in events]
    path.write_text("\n".join(texts) + "\n")
    return path
