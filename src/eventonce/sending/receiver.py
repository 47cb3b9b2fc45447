"""To a receiver over HTTP: one event a request, as EventBridge's API destinations send them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from http.client import HTTPException, responses
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from eventonce.errors import ConfigError
from eventonce.sending.sender import Outgoing, Refusal
from eventonce.sinks.post import Poster
from eventonce.sinks.webhook import SECRET

TIMEOUT: Final = 5.0
"""Seconds an API destination waits for its answer."""

EXCERPT: Final = 200
"""Characters of an answer that are shown: a sentence or two."""

_URL: Final = re.compile(r"https?://[\x21-\x7e]+")


class _Told(msgspec.Struct):
    status: str = ""
    reason: str = ""


class _Report(msgspec.Struct):
    events: list[_Told] = []


class Receiver:
    """Posts events to a URL; refused is what is answered with anything but 2xx."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._headers = {"content-type": "application/json", "user-agent": "eventonce", **headers}
        words = (word for said in headers.values() for word in said.split())
        self._secrets = [word for word in words if len(word) >= SECRET]
        self._poster = Poster(_parsed(url), TIMEOUT)

    def __call__(self, going: Sequence[Outgoing], answers: Counter[str]) -> list[Refusal]:
        """Post these; answers which were refused, each with its status."""
        refusals = []
        for outgoing in going:
            try:
                answer = self._poster.post(outgoing.raw, self._headers)
            except (OSError, HTTPException) as error:
                answers["no answer"] += 1
                refusals.append(Refusal.of(outgoing, "no answer", type(error).__name__))
                continue
            told = _told(answer.body)
            answers.update(one.status for one in told)
            if not 200 <= answer.status < 300:
                meaning = responses.get(answer.status, "")
                reason = "; ".join(one.reason for one in told if one.reason)
                said = self._excerpt(reason or answer.body.decode(errors="replace")) or meaning
                if not told:
                    answers[f"HTTP {answer.status}"] += 1
                refusals.append(Refusal.of(outgoing, f"HTTP {answer.status}", said))
        return refusals

    def _excerpt(self, text: str) -> str:
        """What fits a line of a table; some servers repeat the headers they were sent."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        printable = "".join(letter if letter.isprintable() else " " for letter in text)
        return " ".join(printable.split())[:EXCERPT]

    def close(self) -> None:
        """Let go of connections."""
        self._poster.close()


def _parsed(url: str) -> SplitResult:
    # Not repeated: what stands before an @ is a secret, and may stand in the rest.
    wrong = ConfigError(
        "--url: write https://host/path, with no user or password in it; an authorisation goes "
        "into --header"
    )
    try:
        parts = urlsplit(url)
        if not _URL.fullmatch(url) or not parts.hostname or "@" in parts.netloc or parts.port == 0:
            raise wrong
    except ValueError:
        # No port, or no address; its own error would repeat it.
        raise wrong from None
    return parts


def _told(body: bytes) -> list[_Told]:
    """What the receiver says became of each event; another server says nothing of the kind."""
    try:
        return [one for one in msgspec.json.decode(body, type=_Report).events if one.status]
    except msgspec.MsgspecError:
        return []
