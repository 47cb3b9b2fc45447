"""The health of the receiver for load balancers: whether the process and the store answer, and
events get through."""

from __future__ import annotations

import asyncio
import logging
import time
from math import inf
from typing import Final, Literal

import msgspec

from eventonce.consumer import Consumer
from eventonce.errors import EventonceError
from eventonce.http_report import Answer
from eventonce.log import Outage
from eventonce.stores.probe import new_trial_key, write_trial
from eventonce.web.admission import Admission
from eventonce.web.responses import in_json

ANSWER_LIFE: Final = 1.0
"""Seconds for which an answer of the store is reused: anybody may probe, and questions cost."""

STORE_WAIT: Final = 2.0
"""Seconds to wait for the store: a probe waits little longer."""

_UNUSED_KEY: Final = bytes(16)
"""A key that no event has."""

log = logging.getLogger("eventonce.web")


Status = Literal["ok", "the store is away", "no event gets through"]


class Health(msgspec.Struct, frozen=True):
    """The answer to a probe; no address and no error, because a probe has no credentials."""

    status: Status
    under_way: int
    """Requests whose handlers still run."""
    oldest: float
    """The age of the oldest request, in seconds."""


class Readiness:
    """The readiness of the receiver; the store is asked at most once a second.

    The first question is a write, and so is each question after a failure, until a write succeeds:
    a store that is full still answers reads. The other questions are reads, which cost less.
    """

    def __init__(self, consumer: Consumer, admission: Admission) -> None:
        self._consumer = consumer
        self._admission = admission
        self._asking: asyncio.Future[None] | None = None
        self._answered_at = -inf
        self._outage = Outage()
        self._fine = False
        self._doubted = True
        """Whether no write has succeeded since the start, or since the store failed an event."""
        self._trial_key = new_trial_key()

    def doubt(self) -> None:
        """Note that the store failed an event."""
        self._doubted = True

    async def alive(self, _: str) -> Answer:
        """Answer that the process runs; the store is not asked."""
        return self._told("ok")

    async def ready(self, _: str) -> Answer:
        """Answer whether events can be processed now."""
        if self._asking is None and time.monotonic() - self._answered_at > ANSWER_LIFE:
            self._asking = asyncio.ensure_future(self._ask())
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=STORE_WAIT)
        if self._asking is not None or not self._fine:
            return self._told("the store is away")
        return self._told("no event gets through" if self._admission.stuck else "ok")

    async def _ask(self) -> None:
        self._fine = False
        doubted, self._doubted = self._doubted, False
        try:
            if doubted:
                await asyncio.to_thread(write_trial, self._consumer.store, self._trial_key)
            else:
                await asyncio.to_thread(self._consumer.admin.show, _UNUSED_KEY)
            self._fine = True
            lasted = self._outage.ended()
            if lasted is not None:
                log.info("ready again, after %.0f s", lasted)
        except EventonceError as error:
            if self._outage.tells():
                log.warning("not ready: %s", error)
        finally:
            # Success does not clear the doubt: the store may have failed an event meanwhile.
            self._doubted = self._doubted or not self._fine
            self._answered_at, self._asking = time.monotonic(), None

    def _told(self, status: Status) -> Answer:
        admission = self._admission
        health = Health(status, len(admission), round(admission.oldest, 1))
        return in_json(health, 200 if status == "ok" else 503)
