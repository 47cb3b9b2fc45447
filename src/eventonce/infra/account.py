"""EventBridge and SQS of one account in one region, and the steps that are taken there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

from eventonce.aws import errors as faults
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable
from eventonce.infra.plan import Infra

SENT: Final = 5
"""Times a request is sent: nobody waits for this but who typed it."""

_ABSENT: Final = frozenset(
    (
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
        "ResourceNotFoundException",
    )
)
_DELETED: Final = frozenset(("AWS.SimpleQueueService.QueueDeletedRecently", "QueueDeletedRecently"))
_AT_ONCE: Final = frozenset(
    (
        "ConcurrentModificationException",
        "QueueAlreadyExists",
        "QueueNameExists",
        "ResourceAlreadyExistsException",
    )
)
"""What comes of two who make or change the same: neither found it a moment before."""

_WRONG: Final = frozenset(
    (
        "InvalidAttributeName",
        "InvalidAttributeValue",
        "InvalidEventPatternException",
        "ManagedRuleException",
        "ValidationException",
    )
)


class Account:
    """Asks, and does and says one step after the other; on a dry run it only says them."""

    def __init__(self, infra: Infra, say: Callable[[str], None], *, dry_run: bool) -> None:
        self.dry_run = dry_run
        self._say = say
        self.steps: list[str] = []
        self.left: list[str] = []
        """What is not as it should be, and is left as it is."""
        config = Config(
            connect_timeout=3.0,
            read_timeout=20.0,
            retries={"mode": "standard", "total_max_attempts": SENT},
        )
        try:
            session = boto3.Session(
                profile_name=infra.profile or None, region_name=infra.region or None
            )
            self._clients = {
                service: session.client(service, endpoint_url=infra.endpoint or None, config=config)
                for service in ("events", "sqs")
            }
        except NoRegionError as error:
            raise ConfigError(
                "infra: which region? Give --region, or region in [infra], or set AWS_REGION"
            ) from error
        except (BotoCoreError, ValueError) as error:
            raise faults.explain(error, "infra") from error

    @property
    def region(self) -> str:
        """The region, as boto3 found it."""
        return str(self._clients["events"].meta.region_name)

    def find(self, service: str, operation: str, what: str, **asked: Any) -> Any:
        """One request about this, as `ask`; None if it is not there."""
        try:
            return self.ask(service, operation, what, **asked)
        except EventonceError as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and faults.code_of(cause) in _ABSENT:
                return None
            raise

    def ask(self, service: str, operation: str, what: str, **asked: Any) -> Any:
        """One request about this; its errors as ours."""
        try:
            return getattr(self._clients[service], operation)(**asked)
        except ClientError as error:
            raise _explained(error, what) from error
        except (BotoCoreError, OSError) as error:
            raise faults.explain(error, what) from error

    def step(self, said: str, do: Callable[[], object]) -> None:
        """Do this and say so; on a dry run only say so."""
        if not self.dry_run:
            do()
        self.done([f"would {said}" if self.dry_run else said])

    def done(self, steps: Iterable[str]) -> None:
        """Say what was done, at once: should a later step fail, this one is known."""
        for step in steps:
            self.steps.append(step)
            self._say(step)

    def close(self) -> None:
        """Let go of connections."""
        for client in self._clients.values():
            client.close()


def _explained(error: ClientError, what: str) -> EventonceError:
    said = error.response["Error"]
    code, message = said.get("Code", ""), said.get("Message", "")
    if code in _DELETED:
        return EventonceError(
            f"{what}: it was deleted less than a minute ago, and AWS makes none of that name so "
            f"soon. Try again in a minute."
        )
    if code in _AT_ONCE:
        return SourceUnavailable(
            f"{what}: {code}: somebody else is making or changing it at this moment. Run this "
            f"again: what is there by then is left as it is."
        )
    if code in _WRONG:
        return ConfigError(f"{what}: {code}: {message}")
    return faults.explain(error, what)
