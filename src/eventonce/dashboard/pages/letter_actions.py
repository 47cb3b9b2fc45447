"""The pages of actions on dead letters: the dry run, the confirmation and the progress."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Final, NamedTuple, cast, get_args

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from eventonce.audit import NO_AUDIT, Audit
from eventonce.clock import wall_clock
from eventonce.core.sealed import key_of_letter
from eventonce.dashboard.access import person_of
from eventonce.dashboard.actions import NO_RUNNERS, TOO_MANY, Action, Kind, TooMany, new_id
from eventonce.dashboard.context import Context, context_of
from eventonce.dashboard.event_stream import stream
from eventonce.dashboard.export_files import EXPORT_KEPT
from eventonce.dashboard.layout import framed, live_parts, table
from eventonce.dashboard.letter_query import LetterQuery, form_of
from eventonce.dashboard.pages.letters import (
    LETTERS_WAIT,
    MOST_READ,
    chosen_in,
    unopened,
    when,
)
from eventonce.dashboard.pages.store import size_of
from eventonce.errors import ConfigError
from eventonce.letters import bulk
from eventonce.letters.reasons import normalised
from eventonce.letters.selection import moment
from eventonce.markup import Html, counted, data, joined, number, tag

ACTION_KINDS: Final[tuple[str, ...]] = get_args(Kind)

MOST_FORETOLD: Final = 1_000
"""The most dead letters for which a dry run asks the store what a redrive would do."""

ACTION_MEANINGS: Final = {
    "redrive": "Each event runs again, except events that took effect meanwhile. "
    "Dead letters that are settled are dropped; the others stay, with their newest reason.",
    "drop": "They are deleted for good: their events do not run, and cannot be brought back.",
    "export": "Their events are written to a file of JSON Lines, including all personal data. "
    "The file can be downloaded when the export has ended. The dead letters stay.",
}


DOWNLOAD_PART: Final = 256 << 10
"""Bytes that one read of the file returns."""

_ID: Final = re.compile(r"[0-9a-f]{16}")
"""The id of an action in a form."""


class Forecast(NamedTuple):
    """The result of a dry run."""

    total: int
    more: bool
    would: Counter[tuple[str, str]]
    """The verdicts and their reasons, for a redrive of the first dead letters."""
    sealed: int
    """The number of them that cannot be opened here."""
    closed: int
    """The number of other sealed dead letters that might match the filter."""
    reason: str
    """The common part of the reasons of a group; empty if no group was chosen."""


async def dry_run(request: Request) -> Response:
    """Return the page of the dry run, with the form that confirms the action."""
    context, kind = context_of(request), _kind(request)
    chosen = _for(kind, context, chosen_in(request, request.query_params))
    if not person_of(request).may_act:
        raise HTTPException(403, "You may look and not act")
    forecast = await context.ask_letters(lambda: _forecast(context, kind, chosen), LETTERS_WAIT)
    body = joined(
        tag(
            "p",
            tag("b", counted(forecast.total, "dead letter")),
            " or more" if forecast.more else None,
            _which(chosen),
            ".",
        ),
        tag("p", "The group: ", data(forecast.reason)) if forecast.reason else None,
        unopened(forecast.closed),
        tag("p", ACTION_MEANINGS[kind]),
        _left_out(forecast) if kind == "export" else None,
        _verdicts(forecast) if kind == "redrive" else None,
        _confirm(kind, chosen, forecast) if forecast.total else None,
        tag(
            "p",
            tag(
                "a",
                "Back",
                href=chosen.link("/letters/one" if chosen.selection.ids else "/letters"),
            ),
        ),
    )
    limit = ["--limit", str(forecast.total)] if forecast.total else []
    command = chosen.command(kind, "--dry-run", *limit)
    return await framed(request, f"{kind.capitalize()}: dry run", body, command)


async def act(request: Request) -> Response:
    """Start the confirmed action."""
    context, kind = context_of(request), _kind(request)
    form = await form_of(request)
    chosen = _for(kind, context, chosen_in(request, form))
    try:
        action = context.actions.start(
            cast("Kind", kind),
            person_of(request),
            chosen,
            _number(form, "limit"),
            found=_number(form, "found") if "found" in form else 0,
            id_=_id(form),
        )
    except TooMany:
        others = tag("p", tag("a", "All actions", href="/actions"))
        return await framed(request, TOO_MANY, others, status=409)
    except ConfigError as error:
        raise HTTPException(409, str(error)) from None
    return RedirectResponse(f"/actions/{action.id}", 303)


async def action(request: Request) -> Response:
    """Return the page of one action: its progress, and the button that stops it or downloads its
    file."""
    context, found = context_of(request), _action(request)
    # The command reports this action; the one that began it would act on other dead letters now.
    command, letters = context.resources.command("audit", found.id), "/letters"
    without = tag("p", NO_AUDIT, class_="note") if not context.resources.audit else None
    # The selection may contain a value of an event that this person must not see.
    which = None
    if person_of(request).sees_values:
        # With the dead letters that came after the dry run, and those that failed again.
        named = found.chosen.selection.consumer or ""
        letters = found.chosen.link("/letters", consumer=named, id=None, until=None)
        selected = found.chosen.selection.text(limit=found.limit)
        which = tag("p", "Which dead letters: ", tag("code", selected), class_="note")
    body = joined(
        tag("p", f"By {found.who}, since {when(found.began)}.", class_="note"),
        which,
        live_parts(await _parts(request, found)),
        tag("p", tag("a", "Dead letters", href=letters), class_="note"),
        without,
    )
    title = found.kind.capitalize()
    return await framed(request, title, body, command, live=f"/live/actions/{found.id}")


async def live(request: Request) -> Response:
    """Stream the progress of one action."""
    return stream(request, partial(_parts, request, _action(request)))


async def _parts(request: Request, found: Action) -> dict[str, Html]:
    return {"progress": _summary(found), "button": _button(request, found)}


async def stop(request: Request) -> Response:
    """Stop one action after its current batch."""
    found = _action(request)
    found.progress.stop.set()
    return RedirectResponse(f"/actions/{found.id}", 303)


async def download(request: Request) -> Response:
    """Send the file of an export that has ended. This needs a form, not a link, because the
    download deletes the file."""
    context, found, person = context_of(request), _action(request), person_of(request)
    file = found.file
    if file is None or not found.ended or not file.there:
        # The page of the action says why there is no file, also after a double click.
        return RedirectResponse(f"/actions/{found.id}", 303)
    try:
        audit = Audit(context.resources.audit)
    except ConfigError as error:
        raise HTTPException(409, str(error)) from None

    async def sent() -> AsyncIterator[bytes]:
        with context.actions.downloading(file, found, person, audit) as progress:
            for at in range(0, file.size, DOWNLOAD_PART):
                yield await to_thread.run_sync(file.read, at, DOWNLOAD_PART)
            progress.stopped = await request.is_disconnected()

    name = "letters.jsonl" if found.state == "finished" else "letters-partial.jsonl"
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "content-length": str(file.size),
    }
    return StreamingResponse(sent(), media_type="application/jsonl", headers=headers)


async def actions(request: Request) -> Response:
    """Return the page of the latest actions."""
    context, sees = context_of(request), person_of(request).sees_values
    rows = [
        (
            tag("a", when(one.began), href=f"/actions/{one.id}"),
            one.kind,
            one.who,
            one.state,
            one.progress.done,
            data(one.chosen.selection.text() if sees else "masked"),
        )
        for one in context.actions.latest()
    ]
    head = ("began", "action", "who", "state", "dead letters", "which")
    none = tag("p", "There were none since the dashboard started.", class_="note")
    kept = tag("p", _audit_note(context), class_="note")
    body = joined(table(head, rows) if rows else none, kept)
    since = f"--since={moment(context.actions.since)}"
    command = context.resources.command("audit", since)
    return await framed(request, "Actions", body, command)


def _audit_note(context: Context) -> str:
    """Return a sentence about the audit, which has all actions."""
    audit = context.resources.audit
    return f"The audit has all of them: {audit}" if audit else NO_AUDIT


def _kind(request: Request) -> str:
    kind: str = request.path_params["kind"]
    if kind not in ACTION_KINDS:
        raise HTTPException(404, "There is no such action")
    return kind


def _for(kind: str, context: Context, chosen: LetterQuery) -> LetterQuery:
    """Return the same query; for a redrive, only of the consumer that can run here."""
    runners = context.resources.runners
    if kind != "redrive":
        return chosen
    if runners is None:
        raise HTTPException(409, NO_RUNNERS)
    own, name = runners.own, chosen.selection.consumer
    if own is None or name == own.name:
        return chosen
    if name is not None:
        raise HTTPException(
            409, f"{own.name} cannot run the dead letters of {name}: redrive them where {name} runs"
        )
    return LetterQuery(chosen.fields | {"consumer": own.name}, context.resources)


def _number(form: Mapping[str, str], name: str) -> int:
    text = form.get(name, "")
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise HTTPException(400, f"{name} must be a number, 1 or more")
    return int(text)


def _id(form: Mapping[str, str]) -> str:
    text = form.get("action", "")
    if text and not _ID.fullmatch(text):
        raise HTTPException(400, "action must be the id that the form has")
    return text


def _forecast(context: Context, kind: str, chosen: LetterQuery) -> Forecast:
    resources, progress = context.resources, bulk.Progress()
    would: Counter[tuple[str, str]] = Counter()
    total = sealed = 0
    common = ""
    with chosen.place(to_change=False) as place:
        for batch in bulk.selected(place, chosen.selection, progress, MOST_READ + 1):
            if kind == "redrive" and total < MOST_FORETOLD and resources.runners is not None:
                for one in bulk.foretell(resources.runners, [batch]):
                    would[one.would, "" if one.would == "run" else one.why] += 1
            if chosen.selection.group and not total:
                common = normalised(batch[0].letter.reason)
            total += len(batch)
            sealed += sum(bool(key_of_letter(one.letter)) for one in batch)
    more = total > MOST_READ
    return Forecast(min(total, MOST_READ), more, would, sealed, progress.closed, common)


def _which(chosen: LetterQuery) -> str:
    told = [f"{name} {value}" for name, value in chosen.fields.items() if value and name != "from"]
    where = " in the queue" if chosen.from_queue else ""
    return f"{where}: {', '.join(told)}" if told else where


def _verdicts(forecast: Forecast) -> Html | None:
    if not forecast.would:
        return None
    looked = forecast.would.total()
    rows = [
        (tag("b", "run again") if verdict == "run" else verdict, many, data(why))
        for (verdict, why), many in forecast.would.most_common(20)
    ]
    some = f"Of the first {number(looked)} of them:" if looked < forecast.total else "Of them:"
    verdicts = table(("would", "dead letters", "because"), rows)
    return tag("div", tag("p", some), verdicts, class_="narrow")


def _left_out(forecast: Forecast) -> Html | None:
    """Return a sentence about the dead letters whose events cannot be exported."""
    if not forecast.sealed:
        return None
    are = "is" if forecast.sealed == 1 else "are"
    said = f"{number(forecast.sealed)} of them cannot be opened here, and {are} left out."
    return tag("p", said, class_="harm")


def _confirm(kind: str, chosen: LetterQuery, forecast: Forecast) -> Html:
    """Return the form with the limit and the absolute times of the selection: dead letters that
    come later were not in the dry run, and `1h` means another time by then. The form has the id of
    its action, so that a second click does not start a second action."""
    since, until = chosen.selection.since, chosen.selection.until
    now = wall_clock() + 1
    fields = chosen.fields | {"until": moment(now if until is None else min(until, now))}
    if since is not None:
        fields |= {"since": moment(since)}
    fields |= {"action": new_id(), "found": str(forecast.total + forecast.more)}
    hidden = [tag("input", type="hidden", name=name, value=value) for name, value in fields.items()]
    return tag(
        "form",
        *hidden,
        tag(
            "label",
            tag("span", "at most"),
            tag(
                "input",
                type="number",
                name="limit",
                value=forecast.total,
                min=1,
                max=999_999_999,
                required=True,
            ),
        ),
        tag(
            "button",
            f"{kind.capitalize()} them now",
            class_="main final" if kind == "drop" else "main",
        ),
        action=f"/letters/{kind}",
        method="post",
        # After a reload, some browsers would fill in the hidden fields of the previous form.
        autocomplete="off",
        class_="confirm",
    )


def _action(request: Request) -> Action:
    found = context_of(request).actions.find(request.path_params["id"])
    if found is None:
        raise HTTPException(
            404,
            "This action is unknown: the dashboard was restarted since, or the action is too old. "
            f"{_audit_note(context_of(request))}",
        )
    return found


def _button(request: Request, found: Action) -> Html:
    """Return the button of an action: Stop while it runs, then Download for an export."""
    if not person_of(request).may_act:
        return joined()
    if found.state == "running":
        words, to = "Stop", "stop"
    elif found.ended and found.file is not None and found.file.there:
        words, to = f"Download, {size_of(found.file.size)}", "file"
    else:
        return joined()
    return tag(
        "form",
        tag("button", words, class_="main"),
        action=f"/actions/{found.id}/{to}",
        method="post",
    )


def _summary(action: Action) -> Html:
    """Return the progress of an action, in words and as a bar."""
    progress = action.progress
    done, counts = progress.done, progress.counts
    rows = [(tag("span", name), many) for name, many in counts.most_common()]
    took = ((action.ended or wall_clock()) - action.began) / 1000
    others = "; the others stay as they are" if action.file is None else ""
    beyond = "; there were more than that, and these stay" if action.found > action.limit else ""
    states = {
        "running": "under way",
        "stopping": "stops after the batch under way",
        "finished": f"finished{beyond}",
        "stopped": f"stopped{others}",
        "failed": f"failed, and does not go on by itself{others}",
    }
    words = f"{counted(done, 'dead letter')} of {number(action.limit)} at most"
    return joined(
        tag("p", tag("b", words), f", {states[action.state]}, after {took:.0f} s.", id="state"),
        tag("p", action.error, class_="harm", role="alert") if action.error else None,
        tag("progress", value=done, max=max(1, action.limit), aria_label="Progress")
        if not action.ended
        else None,
        tag("div", table(("outcome", "dead letters"), rows), class_="narrow") if rows else None,
        _file(action),
    )


def _file(action: Action) -> Html | None:
    """Return sentences about the file of an export that has ended."""
    file = action.file
    if file is None or not action.ended:
        return None
    many = counted(action.progress.counts["exported"], "dead letter")
    if not file.size:
        said = "No event was exported, so there is no file."
    elif file.taken_by:
        said = f"The file was downloaded by {file.taken_by}, and is deleted here."
    elif file.removed:
        said = "The file is deleted here, because nobody downloaded it in time: export them again."
    else:
        said = (
            f"The file has the events of {many}. It is deleted here when it was downloaded, or "
            f"{EXPORT_KEPT / 60:.0f} minutes after the end of the export."
        )
    partial = action.state != "finished" and file.size
    cut = f"The export is partial: it ended after {many}." if partial else ""
    return joined(tag("p", cut, class_="harm") if cut else None, tag("p", said))
