"""Which letters a command means: by id, status, rule, reason, time and consumer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from eventonce.aws.dlq import Held
from eventonce.cli.options import config_option, name_option, store_option
from eventonce.core.status import DEAD_LETTERS


def moment(text: str) -> datetime:
    """A time as people and `letters list` write it, in UTC where it names no offset."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        expected = "a time such as 2026-11-15, 2026-11-15T13:30 or 2026-11-15T13:30:00+00:00"
        raise click.BadParameter(f"{text!r}: {expected} was expected") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def chosen_by(function: Any) -> Any:
    """The arguments and options that choose letters, and where they are looked for."""
    statuses = click.Choice(sorted(DEAD_LETTERS))
    for decorate in reversed(
        (
            click.argument("ids", nargs=-1),
            click.option("--status", type=statuses, help="Only dead letters of this status."),
            click.option("--rule", help="Only dead letters of this rule."),
            click.option("--reason", help="Only dead letters whose reason holds this text."),
            click.option(
                "--since", type=moment, metavar="TIME", help="Only dead letters since then (UTC)."
            ),
            click.option(
                "--until", type=moment, metavar="TIME", help="Only dead letters before then (UTC)."
            ),
            click.option(
                "--from",
                "place",
                metavar="store|sqs://QUEUE",
                help="Where they are: the store, or a dead-letter queue of eventonce, EventBridge, "
                "Lambda or SQS. [default: the file's `letters`, else the store]",
            ),
            name_option,
            store_option,
            config_option,
        )
    ):
        function = decorate(function)
    return function


class Choice(msgspec.Struct):
    """Which letters are meant, and which of the ids given none of them has."""

    ids: tuple[str, ...]
    status: str | None
    rule: str | None
    reason: str | None
    since: datetime | None
    until: datetime | None
    _met: set[str] = msgspec.field(default_factory=set)

    @property
    def missed(self) -> list[str]:
        """The ids that no letter looked at so far begins with."""
        return [begin for begin in self.ids if begin not in self._met]

    def among(self, held: Iterable[Held]) -> Iterator[Held]:
        """The letters meant, in their order."""
        since, until = _millis(self.since, 0), _millis(self.until, 1 << 62)
        for one in held:
            letter = one.letter
            named = [begin for begin in self.ids if letter.id.startswith(begin)]
            self._met.update(named)
            if (
                (not self.ids or named)
                and self.status in (None, letter.status)
                and self.rule in (None, letter.rule)
                and (self.reason or "") in letter.reason
                and since <= letter.at < until
            ):
                yield one


def _millis(at: datetime | None, default: int) -> int:
    return default if at is None else int(at.timestamp() * 1000)
