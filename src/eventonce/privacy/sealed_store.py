"""The wrapper around a store or another place of dead letters: it seals dead letters and results,
and opens them when they are read. The store itself knows nothing of sealing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import msgspec
from msgspec.structs import replace

from eventonce.core.ledger import Record
from eventonce.core.ports import LetterSink, StoreAdmin, Transaction
from eventonce.core.sealed import SEALED_REASON, key_of, key_of_letter
from eventonce.core.status import Status
from eventonce.errors import EventonceError
from eventonce.log import log
from eventonce.privacy.sealer import Sealer
from eventonce.runtime.redrive import rewrite
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

WARNING_INTERVAL: Final = 60.0
"""Seconds between two warnings about results that are not kept or not opened."""

NOT_OPENED: Final = "; not opened: "
"""The words in a reason before the error for which its dead letter could not be opened."""

S = TypeVar("S")


class _Content(msgspec.Struct, frozen=True, array_like=True):
    """All fields of a dead letter but its id. The fields that the store has in clear are for
    readers without a key, and are not trusted."""

    event: bytes
    reason: str
    consumer: str
    status: Status
    rule: str
    key: bytes
    at: int
    attempt: int


_decode: Final = msgspec.msgpack.Decoder(_Content).decode


def sealed_letter(letter: Letter, sealer: Sealer) -> Letter:
    """Return the dead letter with its event and its reason sealed; unchanged if there is no key,
    or if it is sealed already."""
    if not sealer.keys or key_of_letter(letter):
        return letter
    fields = {name: getattr(letter, name) for name in _Content.__struct_fields__}
    event = sealer.seal(msgspec.msgpack.encode(_Content(**fields)), _letter(letter.id))
    return replace(letter, event=event, reason=f"{SEALED_REASON}{key_of(event)!r}")


def opened_letter(letter: Letter, sealer: Sealer) -> Letter:
    """Return the dead letter opened; unchanged if it is not sealed. If it cannot be opened, its
    reason says why."""
    if not key_of_letter(letter):
        return letter
    try:
        content = _decode(sealer.open(letter.event, _letter(letter.id)))
    except (EventonceError, msgspec.MsgspecError) as error:
        return replace(letter, reason=f"{letter.reason}{NOT_OPENED}{error}")
    opened = Letter(letter.id, **msgspec.structs.asdict(content))
    # Text that was added to the reason after sealing, such as that no queue took the dead letter.
    added = letter.reason.removeprefix(f"{SEALED_REASON}{key_of(letter.event)!r}")
    return replace(opened, reason=opened.reason + added) if added else opened


def _letter(id_: str) -> bytes:
    return b"letter\0" + id_.encode()


def _result(key: bytes) -> bytes:
    return b"result\0" + key


class SealedLetters:
    """A wrapper around a place of dead letters, such as a queue: it seals them."""

    def __init__(self, sink: LetterSink, sealer: Sealer) -> None:
        self._sink = sink
        self._sealer = sealer
        self.close = sink.close

    def put_letters(self, letters: Sequence[Letter]) -> None:
        """Seal and keep these; StoreUnavailable if there is no data key: nothing is kept in clear,
        and the event must come again."""
        self._sink.put_letters([sealed_letter(letter, self._sealer) for letter in letters])


class _Results:
    """Seals and opens results. A failure stops no event: its effect has happened."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._told = -WARNING_INTERVAL

    def sealed(self, settlement: Settlement) -> Settlement:
        """Return the settlement with its result sealed; without the result if that fails."""
        if settlement.result is None or not self._sealer.keys:
            return settlement
        try:
            about = _result(settlement.claim.key)
            return replace(settlement, result=self._sealer.seal(settlement.result, about))
        except EventonceError as error:
            self._warn("a result is not kept for copies, because it cannot be sealed: %s", error)
            return replace(settlement, result=None)

    def opened(self, result: bytes, key: bytes) -> bytes:
        """Return the result; still sealed if it cannot be opened, which its reader notices."""
        if not key_of(result):
            return result
        try:
            return self._sealer.open(result, _result(key))
        except EventonceError as error:
            self._warn("a result cannot be opened, and no copy gets it: %s", error)
            return result

    def _warn(self, said: str, error: EventonceError) -> None:
        if monotonic() - self._told >= WARNING_INTERVAL:
            self._told = monotonic()
            log().warning(f"privacy: {said}", error)


class SealedTransaction:
    """A transaction whose settlement has its result sealed."""

    inner: Transaction

    def __init__(self, block: AbstractContextManager[Transaction], results: _Results) -> None:
        self._block = block
        self._results = results

    def __enter__(self) -> Self:
        self.inner = self._block.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        # The caller calls this again if the first call was interrupted.
        return self._block.__exit__(kind, error, trace)

    @property
    def connection(self) -> Any:
        return self.inner.connection

    def settle(self, settlement: Settlement) -> SettleResult:
        return self.inner.settle(self._results.sealed(settlement))

    def failed(self, error: BaseException) -> bool:
        return self.inner.failed(error)


class SealedStore:
    """A wrapper around a store: it seals dead letters and results, and changes nothing else."""

    def __init__(self, store: Any, sealer: Sealer) -> None:
        self.inner = store
        self.sealer = sealer
        self._results = _Results(sealer)
        if hasattr(store, "transaction"):
            self.transaction = self._transaction
        if hasattr(store, "async_connection"):
            self.async_connection = self._async_connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        verdicts: list[Verdict] = self.inner.claim(claims, now)
        for at, verdict in enumerate(verdicts):
            if verdict.result is not None:
                result = self._results.opened(verdict.result, claims[at].key)
                verdicts[at] = replace(verdict, result=result)
        return verdicts

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        kept: list[SettleResult] = self.inner.settle(
            [self._results.sealed(one) for one in settlements], now
        )
        return kept

    def _transaction(self) -> SealedTransaction:
        return SealedTransaction(self.inner.transaction(), self._results)

    def _async_connection(
        self, transaction: SealedTransaction
    ) -> tuple[Any, Callable[[], Awaitable[None]]]:
        found: tuple[Any, Callable[[], Awaitable[None]]]
        found = self.inner.async_connection(transaction.inner)
        return found

    def show(self, key: bytes) -> Record | None:
        record: Record | None = self.inner.show(key)
        if record is None or record.result is None:
            return record
        return replace(record, result=self._results.opened(record.result, key))

    def put_letters(self, letters: Sequence[Letter]) -> None:
        self.inner.put_letters([sealed_letter(letter, self.sealer) for letter in letters])

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        return (opened_letter(one, self.sealer) for one in self.inner.letters(consumer))

    def letter(self, id: str) -> Letter | None:
        letter: Letter | None = self.inner.letter(id)
        return None if letter is None else opened_letter(letter, self.sealer)

    def reseal(self, letters: Sequence[Letter]) -> int:
        """Seal these dead letters with the key in use; return how many were not sealed with it. A
        dead letter that cannot be opened stays as it is."""
        in_use = self.sealer.in_use
        kept = [(one, self.inner.letter(one.id)) for one in letters if not key_of_letter(one)]
        old = [one for one, raw in kept if raw is not None and key_of_letter(raw) != in_use]
        rewrite(cast("StoreAdmin", self), old, if_there=True)
        return len(old)


def sealed(store: S, sealer: Sealer) -> S | SealedStore:
    """Return the store wrapped; unchanged if there are no keys, or if it is wrapped already."""
    if not sealer.keys or isinstance(store, SealedStore):
        return store
    return SealedStore(store, sealer)
