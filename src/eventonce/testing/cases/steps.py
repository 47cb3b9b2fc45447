"""Programs: steps that `play` applies to a store and to the law, comparing every answer; a program
that fails is printed as Python calls."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final, Literal, NoReturn

import msgspec

from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.core.ports import Store
from eventonce.testing.cases.samples import DAY, EPOCH, EVERY_BYTE
from eventonce.testing.factory import admin_of
from eventonce.types import MAX_ORDER, Action, Claim, Settlement, SettleResult, Verdict

RESULTS: Final = {
    "nothing": None,
    "empty": b"",
    "every byte": EVERY_BYTE,
    "64 KiB": EVERY_BYTE * 256,
}
"""Results by name, so that a failing program is readable."""

Result = Literal["nothing", "empty", "every byte", "64 KiB"]


class Ask(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Claim these in one call. Keys are short names, nonces are 0; `play` makes both."""

    claims: tuple[Claim, ...]


class AskAgain(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Repeat the call made `ago` calls before, because its reply was lost."""

    ago: int = 0


class Ending(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """The settlement of the run granted `ago` runs before, by its worker."""

    action: Action
    ago: int = 0
    result: Result = "nothing"
    off: int = 0
    """A number added to the token, for a token that was never granted."""


class Settle(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Settle these in one call; of several endings of one key the first is used."""

    endings: tuple[Ending, ...]


class Wait(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Move the clock; back only while no record has expired, because a store may or may not have
    deleted such a record."""

    ms: int


class WaitFor(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Wait until the end of this key's lease or memory, or some milliseconds before or after."""

    key: bytes
    end: Literal["held_until", "expires"]
    off: int = 0


class Sweep(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Delete expired records; no later answer may change."""

    limit: int = 10


class Forget(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Delete the record of this key, whatever it holds."""

    key: bytes


Step = Ask | AskAgain | Settle | Wait | WaitFor | Sweep | Forget
Program = Sequence[Step]


def play(program: Program, store: Store) -> None:
    """Apply each step to the store and to the law; their answers must be equal in every field."""
    stage = _Stage(store)
    try:
        for step in program:
            stage.do(step)
    except AssertionError:
        raise
    except Exception as error:
        error.add_note(f"raised by the last of:\n{stage.story}")
        raise


class _Stage:
    """The store under test, and the records that it should have by the law."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.admin = admin_of(store)
        self.prefix = secrets.token_bytes(14)
        self.records: dict[bytes, Record] = {}
        self.now = EPOCH
        # The largest numbers that a store must take: numbers of Lua are doubles.
        self.nonces = count(MAX_ORDER, -1)
        self.calls: list[list[Claim]] = []
        self.runs: list[tuple[Claim, int]] = []
        self.story = Story(self.prefix)

    def do(self, step: Step) -> None:
        match step:
            case Ask(claims):
                self.calls.append([self.made(claim) for claim in claims])
                self.claim(self.calls[-1])
            case AskAgain(ago):
                if self.calls:
                    self.claim(self.calls[-1 - ago % len(self.calls)])
            case Settle(endings):
                self.settle(endings)
            case Wait(ms):
                if ms >= 0 or all(ledger.lives(it, self.now) for it in self.records.values()):
                    self.now += ms
            case WaitFor(key, end, off):
                record = self.records.get(self.prefix + key)
                if record is not None:
                    self.now = max(self.now, getattr(record, end) + off)
            case Sweep(limit):
                self.story.tell("store.sweep({}, now={})", limit, self.now)
                swept = self.admin.sweep(limit, now=self.now)
                if not 0 <= swept <= limit:
                    self.fail("    # {}", swept)
            case Forget(key):
                self.forget(self.prefix + key)

    def made(self, claim: Claim) -> Claim:
        return msgspec.structs.replace(claim, key=self.prefix + claim.key, nonce=next(self.nonces))

    def claim(self, claims: list[Claim]) -> None:
        self.story.tell("store.claim({}, now={})", claims, self.now)
        lawful: list[Verdict] = []
        for claim in claims:
            verdict, record = ledger.judge(self.records.get(claim.key), claim, self.now)
            lawful.append(verdict)
            if record is not None:
                self.records[claim.key] = record
        self.compare(self.store.claim(claims, now=self.now), lawful)
        self.runs.extend(
            (claim, verdict.token)
            for claim, verdict in zip(claims, lawful, strict=True)
            if verdict.token
        )
        self.look(claim.key for claim in claims)

    def settle(self, endings: Iterable[Ending]) -> None:
        settlements: dict[bytes, Settlement] = {}
        for ending in endings:
            if self.runs:
                claim, token = self.runs[-1 - ending.ago % len(self.runs)]
                settlement = Settlement(
                    claim, token + ending.off, ending.action, RESULTS[ending.result]
                )
                settlements.setdefault(claim.key, settlement)
        batch = list(settlements.values())
        self.story.tell("store.settle({}, now={})", batch, self.now)
        lawful: list[SettleResult] = []
        for settlement in batch:
            key = settlement.claim.key
            kept, record = ledger.settle(self.records.get(key), settlement, self.now)
            lawful.append(kept)
            if record is not None:
                self.records[key] = record
        self.compare(self.store.settle(batch, now=self.now), lawful)
        self.look(settlements)

    def forget(self, key: bytes) -> None:
        self.story.tell("store.forget({})", [key])
        record = self.records.pop(key, None)
        forgot = self.admin.forget([key])
        if record is None or ledger.lives(record, self.now):
            self.compare(forgot, int(record is not None))

    def look(self, keys: Iterable[bytes]) -> None:
        """Check the records against the law; an expired one may exist or not."""
        for key in keys:
            record = self.records.get(key)
            if record is not None and ledger.lives(record, self.now):
                shown = self.admin.show(key)
                if shown != record:
                    self.story.tell("store.show({})", key)
                    self.compare(shown, record)

    def compare(self, answer: object, lawful: object) -> None:
        if answer == lawful:
            self.story.tell("    # {}", lawful)
        else:
            self.fail("    # law:   {}\n    # store: {}", lawful, answer)

    def fail(self, why: str, *values: object) -> NoReturn:
        self.story.tell(why, *values)
        raise AssertionError(f"the store does not answer as the law does:\n{self.story}")


FAR: Final = 1_000 * DAY
"""Milliseconds from EPOCH: a larger integer is no instant of a program."""

BYTES_SPELLED: Final = {EVERY_BYTE: "EVERY_BYTE", EVERY_BYTE * 256: "EVERY_BYTE * 256"}


class Story:
    """Lines with their values, formatted only when somebody reads them."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        """The prefix of all keys; short names are shown without it."""
        self.lines: list[tuple[str, tuple[object, ...]]] = []
        self.names: dict[int, str] = {}

    def tell(self, line: str, *values: object) -> None:
        """Add one line; the values replace its braces."""
        self.lines.append((line, values))

    def __str__(self) -> str:
        self.names.clear()
        return "\n".join(self._told(line, values) for line, values in self.lines)

    def _told(self, line: str, values: tuple[object, ...]) -> str:
        new = [
            f"{self._name(claim)} = {self._struct(claim)}\n"
            for claims in values
            if isinstance(claims, list)
            for claim in claims
            if isinstance(claim, Claim) and claim.nonce not in self.names
        ]
        return "".join(new) + line.format(*map(self._code, values))

    def _name(self, claim: Claim) -> str:
        return self.names.setdefault(claim.nonce, f"c{len(self.names) + 1}")

    def _struct(self, value: msgspec.Struct) -> str:
        """Return the struct without fields that have their default."""
        fields = [
            f"{field.name}={self._code(getattr(value, field.name))}"
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({', '.join(fields)})"

    def _code(self, value: object) -> str:
        match value:
            case Claim():
                return self._name(value)
            case msgspec.Struct():
                return self._struct(value)
            case list():
                return f"[{', '.join(map(self._code, value))}]"
            case bytes():
                return BYTES_SPELLED.get(value) or repr(value.removeprefix(self.prefix))
            case int() if not isinstance(value, bool):
                off = value - EPOCH
                return f"{value:_}" if abs(off) > FAR else f"EPOCH {'-+'[off >= 0]} {abs(off):_}"
            case _:
                return repr(value)
