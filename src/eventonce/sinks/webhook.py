"""The HTTP webhook as a sink: the event is the body of a POST, whose answer decides on a retry."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote

from eventonce.errors import ConfigError, Reject, Retry
from eventonce.sinks.http_client import (
    SECRET_CHARACTERS,
    Answer,
    HTTPClient,
    NoAnswer,
    excerpt,
    parse_url,
)
from eventonce.types import NO_HEADERS, Job

ANSWER_TIMEOUT: Final = 10.0
"""Seconds from the connection to the end of the answer: a webhook that takes longer is better
called again, and a lease of 60 s leaves time for that."""

RETRIED_STATUSES: Final = frozenset((401, 407, 408, 409, 425, 429))
"""The refusals that are retried, beside all of 5xx: credentials that are being changed, a timeout,
the same key in progress, too early, too many. Every other answer is final."""

OWN_HEADERS: Final = frozenset(
    ("connection", "content-length", "host", "idempotency-key", "transfer-encoding")
)
"""The headers that eventonce sets itself; a user's value would break the request."""

LONGEST_PAUSE: Final = 3600
"""The most seconds of a server's `Retry-After`: one answer must not stop events for days, or the
run over a capture for ever. A server that is not ready after an hour can ask again."""

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Webhook:
    """Posts each event to a URL with its effect id as `Idempotency-Key`.

    At least once: the receiver recognises a copy by its key. An answer of 2xx is success. A
    temporary refusal is retried, after `Retry-After` if the answer has one; any other answer, a
    redirect too, rejects the event.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] = NO_HEADERS, timeout: float = ANSWER_TIMEOUT
    ) -> None:
        parts = parse_url(
            url,
            "Webhook: write https://host/path in ASCII, with no space, user, password or # in it; "
            "an authorisation goes into headers",
        )
        if not 0 < timeout <= 3600:
            raise ConfigError(
                f"Webhook: timeout must be greater than 0 and at most 3600 seconds, not {timeout!r}"
            )
        self._place = f"{parts.scheme}://{parts.netloc}"
        self._secrets = _secrets(parts, headers)
        self._headers = {
            "content-type": "application/json",
            "user-agent": "eventonce",
            **_checked(headers),
        }
        self._client = HTTPClient(parts, timeout)

    def __call__(self, job: Job) -> None:
        """Post the event; raises Retry or Reject for anything but success."""
        headers = {**job.trace, **self._headers, "idempotency-key": job.effect_id}
        try:
            answer = self._client.post(job.event.raw, headers)
        except NoAnswer as error:
            raise Retry(f"{self._place} did not answer: {error}") from error
        if 200 <= answer.status < 300:
            return
        said = self._said(answer)
        if answer.status in RETRIED_STATUSES or answer.status >= 500:
            raise Retry(said, after=retry_after(answer.headers, time.time()))
        if 300 <= answer.status < 400:
            said += "; redirects are not followed: set the address of the redirect as the sink"
        raise Reject(said)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _said(self, answer: Answer) -> str:
        phrase = f"{answer.status} {responses.get(answer.status, '')}".strip()
        short = excerpt(answer.body.decode("utf-8", "replace"), self._secrets)
        return f"{self._place} answered {phrase}" + (f": {short}" if short else "")


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds of `Retry-After`, at most an hour, from a number or a date; None if the
    header is missing or cannot be read.

    A date is compared with the server's own `Date`, if the answer has one.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:9]), LONGEST_PAUSE))
    until = _date(text)
    if until is None:
        return None
    sent = _date(headers.get("date", ""))
    return min(max(0.0, until - (now if sent is None else sent)), float(LONGEST_PAUSE))


def _date(text: str) -> float | None:
    try:
        moment: datetime = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _secrets(url: SplitResult, headers: Mapping[str, str]) -> list[str]:
    """Return the texts that a reason must not repeat, the longest first."""
    paths = [url.path, unquote(url.path)]
    queries = [url.query, *(value for _, value in parse_qsl(url.query))]
    whole = [*paths, *queries, *headers.values()]
    found = {*whole, *(part for text in whole for part in re.split(r"[/\s]+", text))}
    return sorted((part for part in found if len(part) >= SECRET_CHARACTERS), key=len, reverse=True)


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            # The value is not repeated: it may be a secret.
            raise ConfigError(f"Webhook: header {name!r} cannot be sent: check its characters")
        if name.lower() in OWN_HEADERS:
            raise ConfigError(f"Webhook: header {name!r} is set by eventonce: remove it")
    return {name.lower(): value for name, value in headers.items()}
