"""Queues and buses that events or letters go to: what their URIs say of where they are."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

from eventonce.aws.sqs import parse
from eventonce.core.masking import split

_ARN: Final = "arn:"
_OF_BUS: Final = "event-bus/"


class Outlet(msgspec.Struct, frozen=True):
    """A queue or a bus; region and account are empty for those of the consumer itself."""

    name: str
    region: str = ""
    account: str = ""


def queue(uri: str) -> Outlet:
    """The queue of `sqs://NAME?region=…`, or of its URL."""
    address = parse(uri)
    return Outlet(address.name, address.region or "", address.account)


def bus(uri: str) -> Outlet:
    """The bus of `events://NAME?region=…`; its ARN may stand there, if it is another account's."""
    parts = split(uri)
    said = dict(parse_qsl(parts.query))
    name = unquote(parts.netloc + parts.path).rstrip("/")
    if not name.startswith(_ARN):
        return Outlet(name, said.get("region", ""))
    _, _, _, region, account, rest = name.split(":", 5)
    return Outlet(rest.removeprefix(_OF_BUS), region, account)
