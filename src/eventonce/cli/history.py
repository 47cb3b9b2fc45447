"""`eventonce history`: the decisions about a conversation or an event, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.history_options import history_option, history_to_read
from eventonce.cli.options import Settings, filled, instant, json_option, with_settings
from eventonce.cli.output import counted, emit, notice, one_line, table, wants_json
from eventonce.clock import wall_clock
from eventonce.core.status import MEANINGS
from eventonce.history import History, Search
from eventonce.history.recorder import hidden_text
from eventonce.history.search import SAME_ID
from eventonce.history.story import NOTHING_FOUND, Chapter, moment, told
from eventonce.history.summary import CAUSES, GROUP_OF, GROUPS, SUMMARY_FIELDS, Summary, summary
from eventonce.history.tables import MINUTE


class Several(click.Choice[str]):
    """One of these values, or several, separated by commas."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text without spaces."""
        one = super().convert
        return ",".join([one(name.strip(), param, ctx) for name in value.split(",")])


def _key(ctx: click.Context, param: click.Parameter, text: str | None) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(filled(ctx, param, text))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not hexadecimal", param_hint="--key") from None


@click.command()
@click.option(
    "--conversation", callback=filled, metavar="ID", help="The conversation, contact, call or case."
)
@click.option(
    "--event",
    "id",
    callback=filled,
    metavar="ID",
    help="The event of this transport id, with its copies under other ids.",
)
@click.option(
    "--subject",
    callback=filled,
    metavar="TEXT",
    help="The subject of a state, the whole text as `explain` shows it.",
)
@click.option("--key", callback=_key, metavar="KEY", help="The key of an event, in hexadecimal.")
@click.option(
    "--status",
    type=Several(sorted(MEANINGS)),
    help="Only decisions of this kind, or of several kinds with commas between.",
)
@click.option(
    "--copies",
    type=Several([*SAME_ID]),
    help="Only copies, by their transport id: the same as that of the event that took effect, "
    "another, or unknown.",
)
@click.option("--type", metavar="TYPE", help="Only events of this type.")
@click.option("--rule", help="Only decisions by this rule.")
@click.option("--reason", help="Only decisions whose reason contains this text.")
@click.option("--since", callback=instant, metavar="TIME", help="Since TIME (UTC), or so long ago.")
@click.option(
    "--until", callback=instant, metavar="TIME", help="Before TIME (UTC), or so long ago."
)
@click.option(
    "--totals",
    is_flag=True,
    help="How many by outcome, cause, type, rule and worker, to the minute, instead of each.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=1000,
    help="The latest decisions, at most so many.",
)
@history_option
@with_settings("name", "config")
@json_option
def history(settings: Settings, limit: int, uri: str | None, *, totals: bool, **fields: Any) -> int:
    """Tell what was decided about a conversation, an event, a subject or a key; or the latest
    decisions.

    All options that are given must be true of a decision. The decisions of all consumers that
    share the history are told; --name selects one.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    search = Search(consumer=settings.given_name or "", **given)
    with history_to_read(settings.file, uri) as opened:
        if totals:
            return _counted(opened, search)
        found, cut = opened.story(search, limit)
        hidden = opened.hidden_from(search) if found else 0
    chapters = told(found, whole=search.whole, cut=cut)
    emit([_document(chapter) for chapter in chapters], _text(chapters))
    if cut and not wants_json():
        earlier = len(found) - limit
        runs = f", and {counted(earlier, 'run')} before them" if earlier else ""
        notice(f"these are the latest {limit}{runs}; a larger --limit shows more")
    if hidden:
        notice(f"the history may have more decisions: {hidden_text(hidden)}")
    if not found:
        notice(NOTHING_FOUND)
        return FAILED
    return 0


def _counted(opened: History, search: Search) -> int:
    """Print the counts by outcome, cause, type, rule and worker."""
    if search.conversation or search.id or search.subject or search.key or search.reason:
        raise click.UsageError("--totals takes only --status, --copies, --type, --rule and --name")
    fields = ("consumer", *SUMMARY_FIELDS)
    wanted = [(fields.index(name), values) for name, values in search.kinds]
    counts = [
        (at, kind[1:], events, took)
        for at, kind, events, took in opened.counts(
            search.since or 0, search.until or wall_clock() + MINUTE, fields
        )
        if all(kind[place] in values for place, values in wanted)
    ]
    found = summary(counts)
    begin = min((at for at, *_ in counts), default=None)
    document = {
        "outcomes": found.statuses,
        "copies": {CAUSES[which]: many for which, many in found.causes.items()},
        "types": found.types,
        "rules": found.rules,
        "workers": found.workers,
        "since": begin,
    }
    emit(document, "\n\n".join([_table(found), *_meant(begin)]))
    return 0 if found.events else FAILED


def _meant(begin: int | None) -> list[str]:
    if begin is None:
        return []
    dropped = "they were more than `most`, or of a conversation that was forgotten"
    return [f"all decisions since {moment(begin)}, also those that are no longer kept: {dropped}"]


def _statuses(found: Summary, group: str) -> str:
    """Return the statuses of this group with their counts: `failed 80, busy 3`."""
    return ", ".join(
        f"{status} {many}" for status, many in found.statuses.items() if GROUP_OF[status] == group
    )


def _table(found: Summary) -> str:
    groups = [
        (name, many, _statuses(found, name), GROUPS[name]) for name, many in found.groups.items()
    ]
    copies = [(CAUSES[which], many) for which, many in found.causes.items()]
    parts = [table(groups, head=("outcome", "events", "status", ""))]
    if copies:
        parts.append(table(copies, head=("copies, by cause", "events")))
    head = ("events", "copies", "not settled", "dead letters", "ms a run")
    named = {"types": found.types, "rules": found.rules, "workers": found.workers}
    for title, busiest in named.items():
        rows = [
            (
                one_line(one.name) or "none",
                one.events,
                one.copies,
                one.unsettled,
                one.letters,
                f"{one.took:.1f}",
            )
            for one in busiest
        ]
        if rows:
            parts.append(table(rows, head=(f"busiest {title}", *head)))
    return "\n\n".join(parts)


def _document(chapter: Chapter) -> dict[str, object]:
    decisions = [{**msgspec.structs.asdict(it), "key": it.key.hex()} for it in chapter.decisions]
    return {"sentences": chapter.sentences, "decisions": decisions}


def _text(chapters: Sequence[Chapter]) -> str:
    consumers = {chapter.first.consumer for chapter in chapters}
    lines = []
    for chapter in chapters:
        first = chapter.first
        whose = f"  [{first.consumer}]" if len(consumers) > 1 else ""
        name = one_line(first.type) or "not an event"
        lines.append(f"{moment(first.at)}  {name}{whose}")
        # The fields for a next search.
        ids = {"conversation": first.conversation, "subject": first.subject, "key": first.key.hex()}
        said = [f"{what} {one_line(value)}" for what, value in ids.items() if value]
        lines += [
            f"  {line}" for line in (", ".join(said), *map(one_line, chapter.sentences)) if line
        ]
    if not lines:
        return ""
    decisions = counted(sum(len(chapter.decisions) for chapter in chapters), "decision")
    facts = counted(len(chapters), "event")
    return "\n".join([*lines, "", f"{facts}, {decisions}"])
