"""The dead letters of a command: their selection, their source, and the consumers that run them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial, wraps
from itertools import chain
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from eventonce.audit import Audit, user
from eventonce.aws.dlq import FoundLetter
from eventonce.cli import FAILED, INTERRUPTED
from eventonce.cli.history_options import history_of, open_history
from eventonce.cli.options import Settings, filled, instant, options, with_settings
from eventonce.cli.output import counted, notice, on_terminal, overwrite
from eventonce.cli.signals import ended_by_signals
from eventonce.config.checks import check_values
from eventonce.consumer import Consumer
from eventonce.core.plan import Handler
from eventonce.core.status import DEAD_LETTERS
from eventonce.errors import ConfigError
from eventonce.letters import bulk
from eventonce.letters.bulk import Progress
from eventonce.letters.reasons import grouping
from eventonce.letters.runners import Runners
from eventonce.letters.selection import ALL_CONSUMERS, Selection, unnaming
from eventonce.letters.sources import STORE, LetterSource, StoreLetterSource, open_queue
from eventonce.sinks import imported


class Chosen(msgspec.Struct):
    """The dead letters of a command, and their source."""

    settings: Settings
    selection: Selection
    source: str | None
    limit: int | None
    all_consumers: bool

    def open(self, *, to_change: bool = False, own: Consumer | None = None) -> LetterSource:
        """Open the source that `--from` or the file names, otherwise the store. If the consumer
        `own` redrives, it is the consumer's own store, because its effects are recorded there."""
        name, consumer = self.settings.given_name, self.selection.consumer
        if own is not None:
            if name not in (None, own.name):
                raise ConfigError(f"--handler: {own.name!r} cannot run dead letters of {name!r}")
            if self.all_consumers:
                raise ConfigError(
                    f"--handler: {own.name!r} cannot run dead letters of others; remove "
                    f"{ALL_CONSUMERS}"
                )
            consumer = own.name
            self.selection = msgspec.structs.replace(self.selection, consumer=consumer)
        where = self.source or self.settings.file.letters or STORE
        if where == STORE:
            return StoreLetterSource(
                self.settings.open_store() if own is None else own.admin, consumer
            )
        return open_queue(where, consumer, self.settings.sealer, to_change=to_change)

    def batches(
        self, place: LetterSource, progress: Progress, *, ordered: bool = False
    ) -> Iterator[list[FoundLetter]]:
        """Yield the dead letters of this source, in small batches."""
        return bulk.selected(place, self.selection, progress, self.limit, ordered=ordered)

    def each(
        self, place: LetterSource, progress: Progress, *, ordered: bool = False
    ) -> Iterator[FoundLetter]:
        """Yield the dead letters of this source."""
        return chain.from_iterable(self.batches(place, progress, ordered=ordered))

    @contextmanager
    def acting(self, action: str, *, shown: bool = True) -> Iterator[Progress]:
        """Run an action on the dead letters: with progress on a terminal and audit lines; Ctrl-C
        stops it after the current batch."""
        audit = Audit(self.settings.file.audit)
        visible = shown and on_terminal(sys.stderr)
        progress = Progress(_show if visible else lambda _: None)
        scope = self.selection.scope(source=self.source, limit=self.limit)
        try:
            with (
                bulk.audited(audit, action, scope, progress, who=user(), via="cli"),
                ended_by_signals(lambda _: progress.stop.set()),
            ):
                yield progress
        finally:
            if visible and progress.done:
                click.echo(err=True)

    def end(self, place: LetterSource | None, progress: Progress) -> int:
        """Report dead letters that were not found, not opened or not reached; return the exit
        code."""
        for begin in progress.missed:
            notice(f"no dead letter has an id that begins with {begin!r}")
        closed = {", and not compared": progress.closed, "": progress.counts[bulk.SEALED]}
        for more, many in closed.items():
            if many:
                said = f"{counted(many, 'dead letter')} not opened{more}"
                notice(f"{said}: `letters list` names the keys")
        if not progress.stopped:
            return FAILED if progress.missed or any(closed.values()) else 0
        left = "the others are in the queue still"
        if isinstance(place, StoreLetterSource):
            rest = sum(map(len, bulk.selected(place, self.selection, Progress())))
            left = f"{counted(rest, 'dead letter')} of this selection left"
        notice(f"stopped after {progress.done:,}; {left}")
        return INTERRUPTED


def _show(progress: Progress) -> None:
    said = ", ".join(f"{count:,} {name}" for name, count in progress.counts.most_common())
    overwrite(said)


def selects(function: Any) -> Any:
    """Give a command the arguments and options of a `Selection`."""

    @wraps(function)
    def command(
        settings: Settings,
        source: str | None,
        limit: int | None,
        *,
        all_consumers: bool,
        **given: Any,
    ) -> Any:
        named = click.get_current_context().get_parameter_source("name")
        if all_consumers and named is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--name selects one consumer, and {ALL_CONSUMERS} all of them")
        check_values(settings.file, "history", "privacy")
        fields = {name: given.pop(name) for name in Selection.__struct_fields__ if name in given}
        secrets = settings.file.secret_bytes
        selection = Selection(
            consumer=None if all_consumers else settings.file.name or None,
            group_of=grouping(secrets),
            unnamed=unnaming(secrets),
            **fields,
        )
        return function(Chosen(settings, selection, source, limit, all_consumers), **given)

    return options(
        click.argument("ids", nargs=-1, callback=filled),
        click.option(
            "--status",
            type=click.Choice(sorted(DEAD_LETTERS)),
            help="Only dead letters of this status.",
        ),
        click.option("--rule", callback=filled, help="Only dead letters of this rule."),
        click.option("--type", callback=filled, metavar="TYPE", help="Only events of this type."),
        click.option(
            "--reason", callback=filled, help="Only dead letters whose reason contains this text."
        ),
        click.option(
            "--group",
            callback=filled,
            metavar="ID",
            help="Only dead letters of this group, as `groups` lists it.",
        ),
        click.option(
            "--conversation",
            callback=filled,
            metavar="ID",
            help="Only events of this conversation, contact, call or case.",
        ),
        click.option(
            "--since",
            callback=instant,
            metavar="TIME",
            help="Only dead letters since TIME (UTC), such as 2026-11-16T08:00Z or 7d.",
        ),
        click.option(
            "--until", callback=instant, metavar="TIME", help="Only dead letters before TIME (UTC)."
        ),
        click.option(
            ALL_CONSUMERS,
            is_flag=True,
            help="Dead letters of all consumers, not of the file's `name` alone.",
        ),
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            metavar="N",
            help="At most N dead letters: of a store the oldest, of a queue any.",
        ),
        click.option(
            "--from",
            "source",
            metavar="SOURCE",
            help="`store`, or a dead-letter queue of eventonce, EventBridge, Lambda or SQS: "
            "sqs://NAME.  [default: `letters` of the file, or else the store]",
        ),
        with_settings("name", "store", "config"),
    )(command)


@contextmanager
def runners_of(
    settings: Settings, handler: str | None, given: Handler | None = None
) -> Iterator[Runners]:
    """Return the consumers that run dead letters: with the given function; otherwise with this
    handler or `Consumer` (`module:name`); otherwise with the sinks of the file."""
    target: Any = given if given or handler is None else imported(handler)
    own: Consumer | None = target if isinstance(target, Consumer) else None
    if own is not None and settings.given_store is not None:
        raise ConfigError(f"--handler: {handler} has its own store; remove --store")
    if own is None and target is not None and not callable(target):
        raise ConfigError(f"--handler: {handler} is neither a function nor a Consumer")
    run = None if own is not None else target
    uri = history_of(settings.file)
    history = partial(open_history, settings.file, uri) if uri else None
    with (
        nullcontext() if own is None else closing(own),
        Runners(settings.file, settings.open_store, run, own, history) as runners,
    ):
        yield runners
