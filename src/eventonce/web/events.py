"""`POST /events`: from a request to the consumer and back, within the limits of the receiver."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Final

from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.envelope import read_body
from eventonce.envelope.bodies import JSON_LINES, is_binary, media_type
from eventonce.envelope.captured import Arrived, Tap
from eventonce.envelope.headers import SNS_TYPE
from eventonce.errors import (
    ConfigError,
    EnvelopeError,
    SourceUnavailable,
    StoreError,
    StoreUnavailable,
)
from eventonce.http_report import Answer, respond, understood
from eventonce.types import Event, Outcome
from eventonce.web.admission import Admission, Limits, Permit
from eventonce.web.authentication import Authenticator
from eventonce.web.responses import Receive, Scope, Send, refuse, send_answer
from eventonce.web.sns import NOTIFICATION, SUBSCRIPTION, Message, Topics, Unverified

STILL_RUNNING: Final = "its handler is still running; sent again, it is answered once it is settled"

SMALL_BODY: Final = 1 << 17
"""The most bytes of a body that is parsed on the loop, in about a millisecond; a larger body is
parsed in a thread."""

COPY_WAIT: Final = 3.0
"""Seconds that a copy waits while its event runs in another process: with the outcome, the sender
need not send again."""

EVENTS_CHANNEL: Final = "http:/events"
"""The channel of these events in a capture."""

CHARSETS: Final = frozenset(("", "utf-8", "utf8", "us-ascii"))

log = logging.getLogger("eventonce.web")


class Events:
    """Processes requests concurrently up to a limit, and answers each in time.

    A handler that outlasts the answer goes on. Its request is under way until the event is settled,
    so that a server that waits for its requests before it ends also waits for the handlers.
    """

    def __init__(
        self,
        consumer: Consumer,
        authenticator: Authenticator,
        limits: Limits,
        key_header: str,
        admission: Admission,
        store_failed: Callable[[], None],
        tap: Tap | None = None,
    ) -> None:
        """`store_failed` is called when an event failed because the store was away."""
        self._consumer = consumer
        self._authenticator = authenticator
        self._limits = limits
        self._key_header = key_header.lower()
        self._admission = admission
        self._store_failed = store_failed
        self._tap = tap
        # One thread: several would only compete with each other and with the loop for the GIL.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="eventonce-reading")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        size = _declared(headers)
        known = self._authenticator.knows(headers)
        refused = self._refused(headers, size, known=known)
        if refused is not None:
            self._admission.count_refusal(refused)
            await send_answer(understood(refused, headers), send)
            return
        permit = self._admission.enter(size)
        # Once for each request: Python 3.11 makes a system call each time.
        loop = asyncio.get_running_loop()
        try:
            body = await self._body(permit, receive, loop)
            if body is not None:
                await self._take(body, headers, send, loop, known=known)
        finally:
            self._admission.leave(permit)

    def _refused(self, headers: Mapping[str, str], size: int, *, known: bool) -> Answer | None:
        """Return a refusal that needs no byte of the body; None if the body must be read."""
        if not known and not self._authenticator.is_signed(headers):
            return self._unauthenticated()
        if size > self._limits.max_body:
            return _unreadable(headers) or self._too_large()
        return _unreadable(headers) or self._admission.refusal(size)

    def _unauthenticated(self, reason: str = "") -> Answer:
        return refuse(401, reason, {"www-authenticate": self._authenticator.challenge})

    def _too_large(self) -> Answer:
        return refuse(413, f"the body is larger than {self._limits.max_body} bytes")

    async def _take(
        self,
        body: bytes | Answer,
        headers: Mapping[str, str],
        send: Send,
        loop: asyncio.AbstractEventLoop,
        *,
        known: bool,
    ) -> None:
        """Answer a request whose body has arrived, or was refused."""
        late: list[asyncio.Task[None]] = []
        events = body if isinstance(body, Answer) else await self._read(headers, body, known=known)
        if isinstance(events, Answer):
            answer = events
            self._admission.count_refusal(answer)
        else:
            if self._tap is not None:
                now = wall_clock()
                self._tap([Arrived(event, EVENTS_CHANNEL, "", now) for event in events])
            timer = loop.call_later(
                self._limits.answer_within, self._answer_now, events, headers, send, late
            )
            try:
                answer = await self._settled(events)
            finally:
                timer.cancel()
        if late:
            await late[0]
        else:
            await send_answer(understood(answer, headers), send)

    def _answer_now(
        self,
        events: Sequence[Event | bytes],
        headers: Mapping[str, str],
        send: Send,
        late: list[asyncio.Task[None]],
    ) -> None:
        self._admission.warn_of_slow()
        answer = understood(self._unsettled(events), headers)
        late.append(asyncio.ensure_future(send_answer(answer, send)))

    async def _body(
        self, permit: Permit, receive: Receive, loop: asyncio.AbstractEventLoop
    ) -> bytes | Answer | None:
        """Return the body, or its refusal; None if the client disconnected.

        The bytes are counted as they arrive: the declared size may be wrong, and a chunked body
        declares none.
        """
        task = asyncio.current_task(loop)
        assert task is not None
        late: list[bool] = []
        pieces: list[bytes] = []
        size = 0
        timer = loop.call_later(self._limits.body_timeout, _give_up, task, late)
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                piece: bytes = message.get("body", b"")
                size += len(piece)
                if size > self._limits.max_body:
                    return self._too_large()
                refused = self._admission.grow(permit, size)
                if refused is not None:
                    return refused
                if not message.get("more_body", False):
                    return b"".join([*pieces, piece]) if pieces else piece
                pieces.append(piece)
        except asyncio.CancelledError:
            # Any other cancellation is for the whole request, not for the body alone.
            if not late or task.uncancel():
                raise
            seconds = self._limits.body_timeout
            return refuse(408, f"the body did not arrive within {seconds:g} seconds")
        finally:
            timer.cancel()

    async def _read(
        self, headers: Mapping[str, str], body: bytes, *, known: bool
    ) -> Sequence[Event | bytes] | Answer:
        topics = self._authenticator.must_prove(headers)
        if topics is not None:
            found = await self._from_sns(topics, headers, body)
            if isinstance(found, Answer):
                return found
            headers, body = found.headers, found.body
        proved = known or topics is not None
        if len(body) <= SMALL_BODY:
            return self._events(headers, body, proved=proved)
        read = partial(self._events, headers, body, proved=proved)
        return await asyncio.get_running_loop().run_in_executor(self._reader, read)

    async def _from_sns(
        self, topics: Topics, headers: Mapping[str, str], body: bytes
    ) -> Message | Answer:
        """Return a verified notification; for any other message, the answer to it."""
        message = await topics.verified(headers, body, time.time())
        refused = message if isinstance(message, Unverified) else None
        if isinstance(message, Message):
            if message.type == NOTIFICATION:
                return message
            if message.type == SUBSCRIPTION:
                refused = await topics.confirm(message)
            else:
                # Its SubscribeURL is not requested: that would subscribe again.
                log.warning("sns: the subscription to %s has ended", message.topic)
        if refused is None:
            return respond([], wall_clock())
        if refused.permanent:
            return self._unauthenticated(refused.reason)
        return refuse(503, refused.reason)

    def _events(
        self, headers: Mapping[str, str], body: bytes, *, proved: bool
    ) -> Sequence[Event | bytes] | Answer:
        if not proved:
            complaint = self._authenticator.complaint(headers, body, time.time())
            if complaint:
                return self._unauthenticated(complaint)
        public = headers
        if self._key_header in public:
            public = {name: value for name, value in public.items() if name != self._key_header}
        if "svix-id" in public and "webhook-signature" not in public:
            # An older name of `webhook-id`, so that one rule covers both. A `webhook-id` in this
            # request would not be signed, and is replaced.
            public = {**public, "webhook-id": public["svix-id"]}
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

    async def _settled(self, events: Sequence[Event | bytes]) -> Answer:
        try:
            outcomes = await self._consumer.process_async(events, wait=COPY_WAIT)
        except (StoreError, ConfigError, SourceUnavailable) as error:
            if not isinstance(error, SourceUnavailable):
                # Also for a missing permission of the store: it may be granted later.
                self._store_failed()
            log.error("a request is not processed, its sender must send it again: %s", error)  # noqa: TRY400
            return refuse(503, "the store is away")
        except Exception:
            # Caught here, because the request may have been answered already, with 429.
            log.exception("a request failed unexpectedly; its answer is 500")
            return refuse(500)
        answer = respond(outcomes, wall_clock())
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR and any(
            isinstance(one.error, StoreUnavailable) for one in outcomes
        ):
            self._store_failed()
        return answer

    def _unsettled(self, events: Sequence[Event | bytes]) -> Answer:
        """Return the answer while handlers still run: send again after `answer_within`; the second
        request is a copy."""
        now = wall_clock()
        again = now + int(self._limits.answer_within * 1000)
        read = (event if isinstance(event, Event) else None for event in events)
        return respond(
            [Outcome(event, "busy", STILL_RUNNING, retry_at=again) for event in read], now
        )


def _give_up(task: asyncio.Task[None], late: list[bool]) -> None:
    late.append(True)
    task.cancel()


def _declared(headers: Mapping[str, str]) -> int:
    """Return the declared size of the body; 0 if there is none."""
    said = headers.get("content-length", "")
    return int(said[:20]) if said.isdecimal() else 0


def _unreadable(headers: Mapping[str, str]) -> Answer | None:
    """Return the refusal of a body with these headers; None if it must be read.

    A body without a content type, a form and plain text are refused: any web page can make a
    browser send these to a receiver on loopback, and no other type.
    """
    content_type = headers.get("content-type", "")
    # These may have any content type: the data of a CloudEvent is of any type, and SNS sends JSON
    # as plain text. No web page can make a browser send their headers to another host.
    binary = is_binary(headers)
    named = binary or SNS_TYPE in headers
    if not named and not _is_json(content_type):
        media = media_type(content_type)
        said = f"content-type is {media!r}" if media else "there is no content-type"
        return refuse(415, f"{said}; it must be application/json or application/x-ndjson")
    if not binary and _charset(content_type) not in CHARSETS:
        return refuse(415, "the charset is not UTF-8; JSON must be UTF-8")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        return refuse(415, "compressed bodies are not supported")
    return None


@lru_cache(maxsize=64)
def _is_json(content_type: str) -> bool:
    media = media_type(content_type)
    return media in ("application/json", *JSON_LINES) or media.endswith("+json")


@lru_cache(maxsize=64)
def _charset(content_type: str) -> str:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower()
    return ""
