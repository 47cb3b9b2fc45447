"""Signature Version 4: the headers that authenticate a request to AWS."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

ALGORITHM: Final = "AWS4-HMAC-SHA256"


class Credentials(NamedTuple):
    """An access key, its secret, and the session token of temporary credentials."""

    key: str
    secret: str
    token: str = ""


def signed(
    headers: Mapping[str, str],
    body: bytes,
    credentials: Credentials,
    scope: tuple[str, str],
    at: float,
) -> dict[str, str]:
    """Return the headers of a POST to `/` with its date, session token and signature.

    The names of `headers` are in lower case and include `host`. `scope` is the region and the
    service, `at` the seconds since the epoch.
    """
    instant = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    region, service = scope
    signing = {**headers, "x-amz-date": instant}
    if credentials.token:
        signing["x-amz-security-token"] = credentials.token
    names = sorted(signing)
    listed = ";".join(names)
    lines = "".join(f"{name}:{' '.join(signing[name].split())}\n" for name in names)
    request = f"POST\n/\n\n{lines}\n{listed}\n{sha256(body).hexdigest()}"
    place = f"{instant[:8]}/{region}/{service}/aws4_request"
    text = f"{ALGORITHM}\n{instant}\n{place}\n{sha256(request.encode()).hexdigest()}"
    key = _signing_key(credentials.secret, instant[:8], region, service)
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    signing["authorization"] = (
        f"{ALGORITHM} Credential={credentials.key}/{place}, "
        f"SignedHeaders={listed}, Signature={signature}"
    )
    return signing


@lru_cache(8)
def _signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    """Return the signing key of one day; several are cached, for two services around midnight."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
