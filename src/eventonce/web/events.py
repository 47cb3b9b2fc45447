"""`POST /events`: from a request to the consumer and back, within what is bearable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from starlette.types import Receive, Scope, Send

from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.envelope import read_body
from eventonce.errors import EnvelopeError, SourceUnavailable, StoreError
from eventonce.http_report import Answer, respond, understood
from eventonce.types import Event, Outcome
from eventonce.web.admission import Admission, Request
from eventonce.web.authentication import Gate
from eventonce.web.limits import Limits
from eventonce.web.reading import declared, unreadable, whole
from eventonce.web.refusals import refuse, response
from eventonce.web.sns import NOTIFICATION, SUBSCRIPTION, Doubt, Message, Topics

STILL_RUNNING: Final = "its handler is still running; sent again, it is answered once it is settled"

SMALL: Final = 1 << 15
"""Bytes of a body that are read on the loop, in about a millisecond; larger ones in a thread."""

log = logging.getLogger("eventonce.web")


class Events:
    """Takes requests side by side up to a bound, and answers each in time.

    A handler that outlasts the answer goes on: its request is under way until it is settled, so
    that a server which waits for its requests before it ends waits for its handlers too.
    """

    def __init__(
        self,
        consumer: Consumer,
        gate: Gate,
        limits: Limits,
        key_header: str,
        admission: Admission,
    ) -> None:
        self._consumer = consumer
        self._gate = gate
        self._limits = limits
        self._key_header = key_header.lower()
        self._admission = admission
        # One thread: several would only take the processor from each other and from the loop.
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="eventonce-reading")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        refused = self._refused(headers)
        if refused is not None:
            await response(refused)(scope, receive, send)
            return
        with self._admission.entered(declared(headers)) as request:
            await self._take(request, headers, scope, receive, send)

    def _refused(self, headers: Mapping[str, str]) -> Answer | None:
        """What can be said before a byte of the body is read."""
        if not self._gate.knows(headers) and not self._gate.is_signed(headers):
            return self._unauthenticated()
        unread = unreadable(headers, self._limits)
        return unread or self._admission.refusal(declared(headers))

    def _unauthenticated(self, reason: str = "") -> Answer:
        return refuse(401, reason, {"www-authenticate": self._gate.challenge})

    async def _take(
        self,
        request: Request,
        headers: Mapping[str, str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        async def answer(found: Answer) -> None:
            await response(understood(found, headers))(scope, receive, send)

        body = await whole(receive, self._limits, partial(self._admission.grow, request))
        if body is None:
            return
        events = await self._read(headers, body) if isinstance(body, bytes) else body
        if isinstance(events, Answer):
            await answer(events)
            return
        processing = asyncio.ensure_future(self._consumer.process_async(events))
        try:
            await asyncio.wait([processing], timeout=self._limits.answer_within)
            if processing.done():
                await answer(_settled(processing))
            else:
                self._admission.warn_of_slow()
                await answer(self._unsettled(events))
                await asyncio.wait([processing])
                _settled(processing)
        except BaseException:
            # The consumer frees what it cannot finish, if it is told to stop.
            processing.cancel()
            await asyncio.wait([processing])
            raise

    async def _read(
        self, headers: Mapping[str, str], body: bytes
    ) -> Sequence[Event | bytes] | Answer:
        topics = self._gate.must_prove(headers)
        if topics is not None:
            found = await self._from_sns(topics, headers, body)
            if isinstance(found, Answer):
                return found
            headers, body = found.headers, found.body
        read = partial(self._events, headers, body, proved=topics is not None)
        if len(body) <= SMALL:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._reading, read)

    async def _from_sns(
        self, topics: Topics, headers: Mapping[str, str], body: bytes
    ) -> Message | Answer:
        """The notification, if it is one that is believed; the answer to anything else."""
        message = await topics.believed(headers, body, time.time())
        doubt = message if isinstance(message, Doubt) else None
        if isinstance(message, Message):
            if message.type == NOTIFICATION:
                return message
            if message.type == SUBSCRIPTION:
                doubt = await topics.confirm(message)
            else:
                # To visit its SubscribeURL would subscribe again.
                log.warning("sns: the subscription to %s has ended", message.topic)
        if doubt is None:
            return respond([], wall_clock())
        return self._unauthenticated(doubt.reason) if doubt.for_good else refuse(503, doubt.reason)

    def _events(
        self, headers: Mapping[str, str], body: bytes, *, proved: bool
    ) -> Sequence[Event | bytes] | Answer:
        if not proved and not self._gate.knows(headers):
            complaint = self._gate.complaint(headers, body, time.time())
            if complaint:
                return self._unauthenticated(complaint)
        public = {name: value for name, value in headers.items() if name != self._key_header}
        if "svix-id" in public and "webhook-signature" not in public:
            # An older name of the same header: one rule knows both. The other is not signed here.
            public["webhook-id"] = public["svix-id"]
        try:
            return read_body(
                body,
                public,
                keep=self._consumer.kept_headers,
                max_bytes=self._consumer.max_bytes,
                max_events=self._limits.max_events,
            )
        except EnvelopeError as error:
            return refuse(413, str(error))

    def _unsettled(self, events: Sequence[Event | bytes]) -> Answer:
        """For handlers that take longer than senders wait: as long again, and then a copy comes."""
        now = wall_clock()
        again = now + int(self._limits.answer_within * 1000)
        read = (event if isinstance(event, Event) else None for event in events)
        return respond(
            [Outcome(event, "busy", STILL_RUNNING, retry_at=again) for event in read], now
        )


def _settled(processing: asyncio.Future[list[Outcome]]) -> Answer:
    try:
        outcomes = processing.result()
    except (StoreError, SourceUnavailable):
        log.exception("a request could not be processed; its sender is told to send again")
        return refuse(503, "the store is away")
    return respond(outcomes, wall_clock())
