"""`eventonce forget`: the record of an event, or all that is kept about a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import click
import msgspec

from eventonce.audit import Audit, user
from eventonce.aws.sqs import SCHEMES
from eventonce.cli import FAILED
from eventonce.cli.history_options import history_of, looking_back
from eventonce.cli.options import (
    Settings,
    confirmed,
    dry_run_option,
    json_option,
    with_settings,
    yes_option,
)
from eventonce.cli.output import counted, emit, notice, table
from eventonce.cli.store import event_in, key_in, keyed
from eventonce.config import Config
from eventonce.config.checks import check_values
from eventonce.core.masking import scheme_of
from eventonce.erasure import Conversation, Erasure, not_reached
from eventonce.history.decision import CONVERSATION_FIELDS
from eventonce.letters.bulk import Progress, audited
from eventonce.letters.selection import unnaming
from eventonce.letters.sources import LetterSource, StoreLetterSource, open_queue
from eventonce.runtime.brief_results import result_key


@click.command()
@click.argument("what", nargs=-1, metavar="KEY|FILE…")
@click.option(
    "--conversation",
    metavar="ID",
    help="Erase what is kept about this conversation; its records stay, without results.",
)
@with_settings("store", "presets", "rules", "name", "config")
@dry_run_option
@yes_option
@json_option
def forget(
    settings: Settings, what: tuple[str, ...], conversation: str | None, *, dry_run: bool, yes: bool
) -> int:
    """Delete the records of these KEYs, or of the events in these FILEs: a copy that arrives
    afterwards is new, and runs.

    With --conversation, erase its dead letters, the results of its events and its decisions, of
    all consumers, look again, and say what is left. Its records stay: a copy that arrives
    afterwards does not run.
    """
    if (conversation is None) == (not what):
        raise click.UsageError("give keys and files, or --conversation ID")
    if conversation is not None:
        if not conversation:
            raise click.BadParameter("it is empty", param_hint="--conversation")
        if conversation.encode("utf-8", "replace").decode() != conversation:
            raise click.BadParameter("the id is not valid UTF-8", param_hint="--conversation")
        return _erase(settings, conversation, dry_run=dry_run, yes=yes)
    if dry_run:
        raise click.UsageError("--dry-run goes with --conversation")
    return _forget(settings, what, yes=yes)


def _forget(settings: Settings, what: tuple[str, ...], *, yes: bool) -> int:
    events = [(one, event_in(one)) for one in what]
    found = [key_in(one) if event is None else keyed(event, settings) for one, event in events]
    keys = list(dict.fromkeys(found))
    records = counted(len(keys), "record")
    with closing(settings.open_store()) as opened:
        if not confirmed(f"Forget {records}? Copies will run again.", yes=yes):
            return FAILED
        # Otherwise the copies of the next run would get the old result, which has its own record.
        opened.forget([result_key(key) for key in keys])
        forgotten = opened.forget(keys)
    emit({"forgotten": forgotten}, f"forgot {forgotten} of {records}")
    if forgotten == len(keys):
        return 0
    unknown = counted(len(keys) - forgotten, "key")
    notice(f"the store had no record of {unknown}; eventonce show FILE tries more names")
    return FAILED


def _erase(settings: Settings, id: str, *, dry_run: bool, yes: bool) -> int:
    file = settings.file
    check_values(file, "history", "privacy")
    audit = Audit(file.audit)
    with closing(settings.open_store()) as opened, looking_back(file) as history:
        places: list[Callable[[], LetterSource]] = [
            partial(StoreLetterSource, opened, None, close=False)
        ]
        if scheme_of(file.letters) in SCHEMES:
            queue = partial(open_queue, file.letters, None, settings.sealer)
            places.append(partial(queue, to_change=not dry_run))
        away = f"there is no history {file.history.store}" if history is None else ""
        away = away if file.history.store else ""
        subject = Conversation(id, opened, places, history, away, _longest_result(file))
        found = subject.look()
        if not dry_run:
            if not confirmed(_question(found), yes=yes):
                return FAILED
            progress = Progress()
            # A digest, because the audit line stays when the conversation is gone.
            scope = f"conversation {unnaming(file.secret_bytes)(id)}"
            with audited(audit, "forget", scope, progress, who=user(), via="cli"):
                found = subject.erase(found)
                progress.counts.update({part.what: part.found for part in found.parts})
                progress.counts["left"] = found.left
                if found.unread:
                    progress.unfinished = f"{found.unread} could not be looked into"
                elif not found.proved:
                    progress.unfinished = "something is left, or may be"
    others = not_reached(file.store, history_of(file), file.letters)
    document = {"conversation": id, "dry_run": dry_run, **msgspec.to_builtins(found)}
    emit({**document, "not_reached": others}, _text(found, others))
    return 0 if found.proved else FAILED


def _longest_result(file: Config) -> int:
    """Return the longest time for which a result is kept, in milliseconds."""
    return max(
        int(rule.remember if rule.keep_result is None else min(rule.keep_result, rule.remember))
        for rule in file.possible_rules()
    )


def _question(found: Erasure) -> str:
    parts = ", ".join(f"{part.found} {part.what}" for part in found.parts)
    return f"Erase for good: {parts}? The events of dead letters will never run."


def _text(found: Erasure, others: Sequence[str]) -> str:
    erased = any(part.left is not None for part in found.parts)
    head = ("", "found", "left") if erased else ("", "found")
    rows = [(it.what, it.found, it.left) if erased else (it.what, it.found) for it in found.parts]
    lines = [table(rows, head=head), ""]
    if not any(part.found for part in found.parts):
        lines.append(
            "nothing was found under this id: a conversation goes by the first of these that its "
            f"events have: {', '.join(CONVERSATION_FIELDS)}"
        )
    elif erased:
        lines.append(
            f"{found.left} left: run the same command again"
            if found.left
            else "looked again: nothing is left of these; the records stay, without results, so "
            "that a copy does not run"
        )
    if found.unread:
        lines.append(f"no proof that nothing is left: {found.unread} could not be looked into")
    lines += [f"bytes of it may still be in {it}; run the same command again" for it in found.files]
    if found.mentioned:
        lines.append(
            f"{counted(len(found.mentioned), 'dead letter')} of another conversation, or of none, "
            "with this id in the text or a key of its events, not dropped; to do so: eventonce "
            f"letters drop {' '.join(found.mentioned)}"
        )
    if found.unclear:
        lines.append(
            f"no proof that nothing is left: {found.unclear} of these name no other conversation"
        )
    if found.types:
        lines.append(
            f"no proof that nothing is left: {counted(found.types, 'type')} of events in the "
            "history have this id in the name or source"
        )
    if found.reasons:
        lines.append(
            f"{counted(found.reasons, 'decision')} of another conversation, or of none, with this "
            "id in the reason, not dropped: the history drops each in its time (keep)"
        )
    lines += [f"not looked for: {it}" for it in found.unknown]
    lines += [f"not reached: {it}" for it in others]
    return "\n".join(lines)
