"""Laws with one mistake each, as stores with the law in a language of their own have made them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from eventonce.core import ledger
from eventonce.core.ledger import Judged, Record, Settled
from eventonce.types import Claim, Settlement, Verdict

Judge = Callable[[Record | None, Claim, int], Judged]
Settle = Callable[[Record | None, Settlement, int], Settled]


def _reading(bend: Callable[[Record, Claim, int], Record | None]) -> Judge:
    """A judge that misreads the record."""

    def judge(record: Record | None, claim: Claim, now: int) -> Judged:
        misread = bend(record, claim, now) if record is not None else None
        return ledger.judge(misread, claim, now)

    return judge


def _asking(bend: Callable[[Claim, int], Claim]) -> Judge:
    """A judge that misreads the claim."""
    return lambda record, claim, now: ledger.judge(record, bend(claim, now), now)


def _answering(bend: Callable[[Record | None, Verdict, int], Verdict]) -> Judge:
    """A judge that decides rightly and answers wrongly."""

    def judge(record: Record | None, claim: Claim, now: int) -> Judged:
        verdict, written = ledger.judge(record, claim, now)
        return bend(record, verdict, now), written

    return judge


def _granting(bend: Callable[[Record, Claim, int], Record]) -> Judge:
    """A judge that decides rightly and writes a wrong grant."""

    def judge(record: Record | None, claim: Claim, now: int) -> Judged:
        verdict, written = ledger.judge(record, claim, now)
        if verdict.kind == "run" and written is not None:
            written = bend(written, claim, now)
            verdict = replace(verdict, token=written.token, wait=written.held_until - now)
        return verdict, written

    return judge


def _advancing(bend: Callable[[Record, Record, Claim, int], Record]) -> Judge:
    """A judge that decides rightly and writes an unchanged version wrongly."""

    def judge(record: Record | None, claim: Claim, now: int) -> Judged:
        verdict, written = ledger.judge(record, claim, now)
        if verdict.kind == "unchanged" and record is not None and written is not None:
            written = bend(record, written, claim, now)
        return verdict, written

    return judge


def _waits_two_leases(record: Record | None, claim: Claim, now: int) -> Judged:
    verdict, written = ledger.judge(record, claim, now)
    if verdict.kind != "busy" or verdict.order is None:
        return verdict, written
    if verdict.wait <= claim.lease:
        return Verdict("dead", order=verdict.order), None
    return replace(verdict, wait=verdict.wait - claim.lease), written


def _seconds(ms: int) -> int:
    return -(-ms // 1_000) * 1_000


def _thirds(order: int | None) -> int | None:
    """The order after a conversion to a double, which cannot hold a large order."""
    return None if order is None else int(float(order * 3)) // 3


JUDGES: Final[Mapping[str, Judge]] = {
    "forgets the nonce": _granting(lambda it, _, __: replace(it, nonce=it.nonce ^ 1)),
    "ignores dirty": _reading(lambda it, _, __: replace(it, dirty=False)),
    "remembers in whole seconds": _granting(
        lambda it, _, __: replace(it, expires=_seconds(it.expires))
    ),
    "leases in whole seconds": _granting(
        lambda it, _, __: replace(it, held_until=_seconds(it.held_until))
    ),
    "expires a millisecond late": _reading(lambda it, _, __: replace(it, expires=it.expires + 1)),
    "holds a millisecond long": _reading(
        lambda it, _, __: replace(it, held_until=it.held_until + (it.held_until > 0))
    ),
    "forgets at the end of the memory, lease or no lease": _reading(
        lambda it, _, now: it if now < it.expires else None
    ),
    "forgets a run as soon as its rule would forget its completion": _granting(
        lambda it, claim, now: replace(it, expires=now + claim.remember)
    ),
    "counts no crash": _reading(
        lambda it, _, __: replace(it, attempt=max(0, it.attempt - (it.nonce != 0)))
    ),
    "lets a version inherit attempts": _reading(
        lambda it, claim, _: (
            replace(it, trying=claim.digest, tried=claim.order)
            if claim.order is not None and claim.order > (it.tried or 0)
            else it
        )
    ),
    "lets a tie inherit attempts": _reading(lambda it, claim, _: replace(it, trying=claim.digest)),
    "applies an older version after a crash": _reading(
        lambda it, _, __: replace(it, tried=it.order)
    ),
    "forgets what is dead": _reading(lambda it, _, __: replace(it, dead=())),
    "knows the last tie only": _reading(lambda it, _, __: replace(it, digests=it.digests[-1:])),
    "forgets the transport id": _reading(lambda it, _, __: replace(it, by=b"")),
    "always slides": _asking(lambda it, _: replace(it, sliding=True)),
    "never slides": _asking(lambda it, _: replace(it, sliding=False)),
    "takes arrival for the event's time": _asking(lambda it, now: replace(it, at=now)),
    "writes at a peek": _asking(lambda it, _: replace(it, peek=False)),
    "redrives nothing": _asking(lambda it, _: replace(it, redrive=False)),
    "redrives everything": _reading(lambda it, claim, _: None if claim.redrive else it),
    "rounds large orders": _asking(lambda it, _: replace(it, order=_thirds(it.order))),
    "drops the sign of orders": _asking(
        lambda it, _: it if it.order is None else replace(it, order=abs(it.order))
    ),
    "verifies no content": _asking(
        lambda it, _: it if it.order is not None else replace(it, digest=b"")
    ),
    "calls a missing transport id another one": _answering(
        lambda _, it, __: (
            replace(it, same_id=False) if it.kind == "duplicate" and it.same_id is None else it
        )
    ),
    "lets an older version wait for ever": _answering(
        lambda _, it, __: replace(it, kind="busy") if it.kind == "dead" and it.order else it
    ),
    "lets an older version wait two leases": _waits_two_leases,
    "lets a stale version wait for the lease": _answering(
        lambda record, it, now: (
            Verdict("busy", wait=record.held_until - now)
            if record is not None and it.kind == "stale" and now < record.held_until
            else it
        )
    ),
    "keeps the ties before an unchanged version": _advancing(
        lambda before, it, _, __: replace(it, digests=before.digests)
    ),
    "shortens the memory at an unchanged version": _advancing(
        lambda _, it, claim, now: replace(it, expires=now + claim.remember)
    ),
    "waits for a lease however far ahead it ends": _answering(
        lambda record, it, now: (
            replace(it, wait=record.held_until - now)
            if record is not None and it.kind == "busy" and it.order is None
            else it
        )
    ),
    "does not say how long to wait": _answering(lambda _, it, __: replace(it, wait=0)),
    "does not say that a run should be alone": _answering(
        lambda _, it, __: replace(it, alone=False)
    ),
    "counts a crash that others had a part in": _reading(
        lambda it, _, __: replace(it, alone=it.alone or it.nonce != 0)
    ),
    "gives a token with the verdict busy": _answering(
        lambda record, it, now: (
            replace(it, token=max(record.token + 1, now * 1_000))
            if record is not None and it.kind == "busy"
            else it
        )
    ),
    "does not say which version won": _answering(lambda _, it, __: replace(it, order=None)),
    "answers an empty result with none": _answering(
        lambda _, it, __: replace(it, result=it.result or None)
    ),
    "answers no result with an empty one": _answering(
        lambda _, it, __: replace(it, result=it.result or b"") if it.kind == "duplicate" else it
    ),
    "cuts a result at a zero byte": _answering(
        lambda _, it, __: replace(it, result=it.result.split(b"\0")[0]) if it.result else it
    ),
    "trusts no lease from the future": _reading(
        lambda it, _, now: it if now * 1_000 >= it.token else replace(it, held_until=0)
    ),
    "counts tokens from one": _granting(
        lambda it, _, now: replace(it, token=1) if it.token == now * 1_000 else it
    ),
    "takes the clock for the token": _granting(lambda it, _, now: replace(it, token=now * 1_000)),
}


def _unfenced(*actions: str) -> Settle:
    def settle(record: Record | None, settlement: Settlement, now: int) -> Settled:
        if record is not None and settlement.action in actions:
            settlement = replace(settlement, token=record.token)
        return ledger.settle(record, settlement, now)

    return settle


def _refusing(refuses: Callable[[Record, Settlement, int], bool]) -> Settle:
    def settle(record: Record | None, settlement: Settlement, now: int) -> Settled:
        kept, written = ledger.settle(record, settlement, now)
        if record is not None and kept == "kept" and refuses(record, settlement, now):
            return "fenced", None
        return kept, written

    return settle


def _settling(bend: Callable[[Record, Settlement, int], Settlement]) -> Settle:
    def settle(record: Record | None, settlement: Settlement, now: int) -> Settled:
        misread = bend(record, settlement, now) if record is not None else settlement
        return ledger.settle(record, misread, now)

    return settle


def _writing(bend: Callable[[Record, Record, Settlement, int], Record]) -> Settle:
    def settle(record: Record | None, settlement: Settlement, now: int) -> Settled:
        kept, written = ledger.settle(record, settlement, now)
        if record is not None and written is not None:
            written = bend(record, written, settlement, now)
        return kept, written

    return settle


def _deletes_on_release(record: Record | None, settlement: Settlement, now: int) -> Settled:
    if settlement.action == "release":
        return "kept", Record()
    return ledger.settle(record, settlement, now)


def _unknown_is_kept(record: Record | None, settlement: Settlement, now: int) -> Settled:
    kept, written = ledger.settle(record, settlement, now)
    return ("kept" if kept == "unknown" else kept), written


SETTLES: Final[Mapping[str, Settle]] = {
    "checks no token": _unfenced("complete", "release", "return", "bury", "extend"),
    "counts what is returned": _settling(
        lambda _, it, __: replace(it, action="release") if it.action == "return" else it
    ),
    "lets anyone complete": _unfenced("complete"),
    "lets anyone release": _unfenced("release"),
    "lets anyone renew": _unfenced("extend"),
    "deletes on release": _deletes_on_release,
    "takes the unknown for kept": _unknown_is_kept,
    "refuses a completion repeated": _refusing(
        lambda record, it, _: record.done and it.action == "complete"
    ),
    "refuses a late completion": _refusing(lambda record, _, now: now >= record.held_until > 0),
    "gives a lease back to a late renewal": _settling(
        lambda record, it, _: replace(it, claim=replace(it.claim, nonce=record.nonce))
    ),
    "buries no deeper than a release": _settling(
        lambda _, it, __: replace(it, action="release") if it.action == "bury" else it
    ),
    "forgets the content at completion": _writing(
        lambda _, it, settlement, __: (
            replace(it, digests=()) if settlement.claim.order is None else it
        )
    ),
    "keeps every tie": _writing(
        lambda before, it, settlement, _: (
            replace(it, digests=(*before.digests, settlement.claim.digest))
            if it.order is not None and it.order == before.order and it.done
            else it
        )
    ),
    "keeps every burial": _writing(
        lambda before, it, settlement, _: (
            replace(it, dead=(*before.dead, settlement.claim.digest))
            if settlement.action == "bury"
            else it
        )
    ),
    "renews from the end of the lease": _writing(
        lambda before, it, settlement, _: (
            replace(it, held_until=before.held_until + settlement.claim.lease)
            if settlement.action == "extend"
            else it
        )
    ),
    "stays dirty": _writing(lambda before, it, _, __: replace(it, dirty=before.dirty)),
    "forgets when the event was": _writing(lambda before, it, _, __: replace(it, at=before.at)),
    "holds on after a release": _writing(
        lambda before, it, settlement, _: (
            replace(it, held_until=before.held_until) if settlement.action == "release" else it
        )
    ),
}
