"""URIs as errors and logs may show them: without secrets, even if the URI is misspelt."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from eventonce.errors import ConfigError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+._-]{0,30})(?::/+|//+)")
"""A scheme, also where its colon or one of its slashes was forgotten."""

_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]{0,45}\]?|[\w.-]{0,253})(?::\d{1,5}(?!\w))?")

_PLAIN: Final = re.compile(
    r"(?:file|memory|sqlite|table):(?!//[^/])[^@?#:\[]{0,200}|[\w.-]{0,200}(?::[\w.]{0,200})?"
)
"""Texts that are not addresses: a name, `module:function`, a file, a table."""

_SEVERAL_HOSTS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?=[^/?#]*,)([^/?#]*\[[^/?#]*)")
"""The scheme and the hosts of a URI with several hosts, one of them in brackets."""

_SECRET: Final = re.compile(r"(?is):.*@|[?&][^=&]*(?:pass|secret|token|key|cred)")


def scheme_of(uri: str) -> str:
    """Return the scheme, or the text in its place; empty if it may be a user or a password."""
    found = _SCHEME.match(uri)
    if found:
        return found[1] if "@" not in uri or found[0].endswith("//") else ""
    return uri.partition(":")[0] if _PLAIN.fullmatch(uri) else ""


def masked(uri: str) -> str:
    """Return the scheme and the host of a URI, also of a misspelt one.

    A password may contain any character, also an @; so with an @ not even the host is shown. A
    path, which may be the secret of a webhook, a query, and a port that is no number are not shown.
    """
    plain = _PLAIN.match(uri)
    if plain and "@" not in uri and uri[plain.end() :][:1] in ("", "?", "#"):
        return plain[0] if plain[0] == uri else f"{plain[0]}…"
    found = _SCHEME.match(uri) if scheme_of(uri) else None
    beginning = found[0] if found else ""
    rest = uri[len(beginning) :]
    host = None if "@" in rest else _HOST.match(rest)
    shown = host[0] if host else ""
    return beginning + (shown if shown == rest else f"{shown}…")


def may_hold_secret(uri: str) -> bool:
    """Whether the URI may contain a secret: a password before an @, or a field of the query with
    the name of a secret."""
    from urllib.parse import unquote  # noqa: PLC0415  slow to import, and not every URI needs it

    return _SECRET.search(unquote(uri).partition("://")[2] or uri) is not None


def split(uri: str) -> SplitResult:
    """Return the parts of a URI, which may have several hosts. Raise ConfigError, without the text,
    if it cannot be split."""
    from urllib.parse import urlsplit  # noqa: PLC0415  slow to import, and not every URI needs it

    try:
        several = _SEVERAL_HOSTS.match(uri)
        if several is None:
            return urlsplit(uri)
        # Newer versions of Python refuse a URI with brackets around any host but the first.
        return urlsplit(f"{several[1]}{uri[several.end() :]}")._replace(netloc=several[2])
    except ValueError:
        """Not raised from here: the parser's own error has parts of the text."""
    raise ConfigError(f"{masked(uri)!r} is not a valid URI: check its brackets")
