"""Which queue, from a URI: its name, or its whole URL, and how it is reached."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from eventonce.core.masking import masked, split
from eventonce.errors import ConfigError

OPTIONS: Final = ("region", "endpoint", "profile")

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_AMAZONS: Final = re.compile(
    r"(?:sqs|queue)(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)"
    r"|(?P<older>[a-z0-9-]+)\.queue\.amazonaws\.com(?:\.cn)?"
    r"|queue\.amazonaws\.com"
)


class Address(msgspec.Struct, frozen=True):
    """Everything a URI can say."""

    name: str
    url: str = ""
    """Empty where only the name is known: the service is asked."""
    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None

    @property
    def account(self) -> str:
        """Whose it is: only a URL says so."""
        path = urlsplit(self.url).path.split("/")
        return path[-2] if len(path) > 2 else ""

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.region, self.endpoint) if part)
        return f"SQS queue {self.name}" + (f" ({where})" if where else "")


def parse(uri: str) -> Address:
    """`sqs://NAME?region=…&endpoint=…&profile=…`, or the queue's URL with the same options."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("sqs", "http", "https") or "@" in parts.netloc or not parts.netloc:
        # Not repeated: what stands before an @ is a secret.
        raise ConfigError(
            "queue: write sqs://NAME?region=REGION, or the queue's URL. Credentials do not belong "
            "in it: they come from the role, the profile or the environment."
        )
    name = unquote(parts.netloc if parts.scheme == "sqs" else parts.path.rpartition("/")[2])
    if not _NAME.fullmatch(name) or (parts.scheme == "sqs" and parts.path not in ("", "/")):
        raise ConfigError(
            f"queue {masked(uri)!r}: write sqs://NAME?region=REGION, or the queue's URL; a name "
            f"has 1 to 80 letters, digits, '-' and '_', and may end with .fifo"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise ConfigError(
            f"queue {name}: there is no option {masked(unknown[0])!r}; a queue takes "
            f"{', '.join(OPTIONS)}"
        )
    _check_endpoint(name, options.get("endpoint"))
    if parts.scheme == "sqs":
        return Address(name, **options)
    amazons = _AMAZONS.fullmatch(parts.hostname or "")
    if amazons is None:
        options.setdefault("endpoint", f"{parts.scheme}://{parts.netloc}")
    else:
        options.setdefault("region", amazons["region"] or amazons["older"] or "us-east-1")
    return Address(name, uri.partition("?")[0], **options)


def same(one: Address, other: Address) -> bool:
    """Whether both are one queue, as far as they say: what only one of them says tells no two
    apart, for the other may mean just that."""
    said = zip(_where(one), _where(other), strict=True)
    return one.name == other.name and all(ours == its for ours, its in said if ours and its)


def _where(address: Address) -> tuple[str, str, str, str]:
    endpoint = (address.endpoint or "").rstrip("/").lower()
    return (address.region or "", endpoint, address.account, address.profile or "")


def _check_endpoint(name: str, endpoint: str | None) -> None:
    if endpoint is None:
        return
    parts = split(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(
            f"queue {name}: the endpoint must be like http://127.0.0.1:4566, with no user or "
            f"password in it"
        )
