"""Targets: the queues and buses that events and dead letters go to, and the ARNs of resources."""

from __future__ import annotations

from typing import Final

import msgspec

from eventonce.aws import eventbridge, sqs

DEFAULT_BUS: Final = "default"
ANY: Final = "*"
"""The region or the account of an ARN if none was given."""

_ARN: Final = "arn:"
_BUS_PATH: Final = "event-bus/"


class Target(msgspec.Struct, frozen=True):
    """A queue or a bus; region and account are empty if they are the consumer's own."""

    name: str
    region: str = ""
    account: str = ""


def queue(uri: str) -> Target:
    """Return the queue of `sqs://NAME?region=…`, or of its URL."""
    address = sqs.parse(uri)
    return Target(address.name, address.access.region or "", address.account)


def bus(uri: str) -> Target:
    """Return the bus of `events://NAME?region=…`; an ARN may be in place of the name."""
    name, access = eventbridge.parse(uri)
    if not name.startswith(_ARN):
        return Target(name, access.region or "")
    _, _, _, region, account, rest = name.split(":", 5)
    return Target(rest.removeprefix(_BUS_PATH), region, account)


class Place(msgspec.Struct, frozen=True):
    """The account and the region of resources: the beginning of their ARNs."""

    region: str = ANY
    account: str = ANY

    @property
    def partition(self) -> str:
        """The partition of AWS: China and GovCloud have their own."""
        apart = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
        return next((it for start, it in apart.items() if self.region.startswith(start)), "aws")

    def of(self, target: Target) -> Place:
        """Return the place of a target, which may have its own region and account."""
        return Place(target.region or self.region, target.account or self.account)

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

    def queue(self, name: str) -> str:
        """Return the ARN of a queue."""
        return self.arn("sqs", name)

    def table(self, name: str) -> str:
        """Return the ARN of a table."""
        return self.arn("dynamodb", f"table/{name}")

    def bus(self, name: str) -> str:
        """Return the ARN of a bus, to put events on it. A delivery has the ARN of its rule."""
        return self.arn("events", f"event-bus/{name}")

    def rule(self, bus: str, name: str) -> str:
        """Return the ARN of a rule, which is the source of its deliveries."""
        return self.arn("events", f"rule/{name if bus == DEFAULT_BUS else f'{bus}/{name}'}")
