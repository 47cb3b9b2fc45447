"""The page of shadow mode: the events that its rules would have dropped, from the record that
workers write."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from eventonce.dashboard.context import context_of
from eventonce.dashboard.layout import framed
from eventonce.dashboard.snapshots import Shared
from eventonce.errors import ConfigError
from eventonce.markup import Html, joined, lead, tag
from eventonce.runtime.shadow import NO_RECORD, NO_RECORD_YET

REPORT_WAIT: Final = 20.0
"""Seconds that a report may take: it counts all lines of the record."""

REPORT_INTERVAL: Final = 30.0
"""Seconds for which a report is shown again without a new count."""


async def page(request: Request) -> Response:
    """Return the report on the record, which says whether it is safe to leave shadow mode."""
    context = context_of(request)
    path = context.resources.shadow_log
    command = context.resources.command("shadow", "report")
    if not path:
        return await framed(request, "Shadow mode", tag("p", NO_RECORD, class_="note"), command)

    async def ask() -> Html:
        return await context.ask_shadow(lambda: _report(Path(path)), REPORT_WAIT)

    if context.shadow is None:
        context.shadow = Shared(ask, REPORT_INTERVAL)
    body = await context.shadow.get()
    return await framed(request, "Shadow mode", body, command)


def _report(path: Path) -> Html:
    # These need the extra for studies.
    from eventonce.sources.files import Capture  # noqa: PLC0415
    from eventonce.study.page.shadowed import sentence, shadow_page  # noqa: PLC0415
    from eventonce.study.shadow import shadow_report  # noqa: PLC0415

    if not path.exists():
        raise ConfigError(NO_RECORD_YET.format(path=path))
    found = shadow_report(Capture([path], unread=[]))
    return joined(tag("p", lead(sentence(found)), class_="lead"), shadow_page(found).sections)
