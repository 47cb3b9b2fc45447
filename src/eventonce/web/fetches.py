"""GET requests of the receiver's own: few at a time, off the loop, bounded in time and in size.

`sns` says which URLs may be asked.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, build_opener

FETCH_TIMEOUT: Final = 5.0
"""Seconds for one answer: SNS waits fifteen, and its first message needs two of them."""

FETCHES: Final = 4
"""Under way at once; beyond that a sender is told to send again."""

MAX_ANSWER: Final = 1 << 16
"""Bytes: a certificate has two thousand, the answer to a confirmation less."""

Fetch = Callable[[str], bytes]


class _NoRedirects(HTTPRedirectHandler):
    """A redirect would lead to a host that nobody checked."""

    def redirect_request(self, *_: object) -> None:
        return None


def fetched(url: str) -> bytes:
    """The body of the answer to a GET of this URL; OSError for every answer but a whole 200.

    A proxy that the environment names (`https_proxy`) is used.
    """
    ends = time.monotonic() + FETCH_TIMEOUT
    opener = build_opener(_NoRedirects, HTTPSHandler(context=ssl.create_default_context()))
    try:
        with opener.open(url, timeout=FETCH_TIMEOUT) as answer:
            if answer.status != 200:
                raise OSError(f"status {answer.status}")
            body = b""
            while piece := answer.read1(MAX_ANSWER):
                body += piece
                if len(body) > MAX_ANSWER:
                    raise OSError(f"the answer has more than {MAX_ANSWER} bytes")
                if time.monotonic() > ends:
                    raise TimeoutError(f"no whole answer within {FETCH_TIMEOUT:g} seconds")
            return body
    except HTTPError as error:
        with error:
            raise OSError(f"status {error.code}") from None
    except (HTTPException, ValueError) as error:
        raise OSError(f"no HTTP answer: {error}") from error


class Fetches:
    """The requests under way; who asks for the same URL meanwhile gets the same answer."""

    def __init__(self, fetch: Fetch = fetched) -> None:
        self._fetch = fetch
        self._under_way: dict[str, Future[bytes | OSError]] = {}
        self._threads = ThreadPoolExecutor(FETCHES, thread_name_prefix="eventonce-fetches")

    async def ask(self, url: str) -> bytes | OSError:
        """The answer, or why there is none."""
        asked = self._under_way.get(url)
        if asked is None:
            if len(self._under_way) >= FETCHES:
                return OSError(f"{FETCHES} requests are under way, and that is the limit")
            asked = self._under_way[url] = self._threads.submit(self._answer, url)
            asked.add_done_callback(lambda _: self._under_way.pop(url, None))
        # A time limit of its own: the socket's begins anew with every byte of a slow head.
        answer = asyncio.wrap_future(asked)
        await asyncio.wait([answer], timeout=FETCH_TIMEOUT)
        return answer.result() if answer.done() else TimeoutError("no answer in time")

    def _answer(self, url: str) -> bytes | OSError:
        try:
            return self._fetch(url)
        except OSError as error:
            return error
