"""`eventonce serve`: receive events over HTTP and give each to its sink, once."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from eventonce.cli.checks import with_environment
from eventonce.cli.dashboard import checked_settings, dashboard_option, watched_by_people
from eventonce.cli.history_options import keeping_history
from eventonce.cli.logs import log_format_option, log_to_stderr
from eventonce.cli.options import (
    Settings,
    handler_option,
    json_option,
    recording_shadows,
    tap_option,
    tapping,
    verbose_option,
    with_settings,
)
from eventonce.cli.output import emit, table
from eventonce.cli.reload import rules_reloaded
from eventonce.otel.setup import exporting
from eventonce.runtime.observers import Tally, to_log
from eventonce.runtime.retention import maintained


class Port(click.IntRange):
    """A port of an address."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a port: give a number from 0 to 65535.", param, ctx)


@click.command()
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=Port(0, 65_535), help="The port; 0 takes a free one.  [default: 8080]")
@handler_option
@click.option(
    "--anyone-may-send-events",
    is_flag=True,
    help="Listen on other addresses than loopback although no authentication is set.",
)
@tap_option
@dashboard_option
@verbose_option
@log_format_option
@with_settings("store", "name", "presets", "rules", "config")
@json_option
def serve(
    settings: Settings,
    host: str | None,
    port: int | None,
    handler: str | None,
    tap: str | None,
    dashboard: str | None,
    *,
    anyone_may_send_events: bool,
    verbose: bool,
    log_format: str,
) -> None:
    """Receive events at POST /events, from EventBridge API destinations, webhooks or curl.

    Keys and secrets are in the file's [serve] table, or in the environment: EVENTONCE_API_KEYS,
    EVENTONCE_USERS (name:password), EVENTONCE_WEBHOOK_SECRETS, EVENTONCE_STRIPE_SECRETS,
    EVENTONCE_SHOPIFY_SECRETS, EVENTONCE_GITHUB_SECRETS and EVENTONCE_SNS_TOPICS, each a list
    separated by spaces. Without any of them only loopback is listened on.
    """
    from eventonce.web import receiver, server  # noqa: PLC0415  an extra that --help does without
    from eventonce.web.admission import limits  # noqa: PLC0415  likewise
    from eventonce.web.authentication import Authenticator  # noqa: PLC0415  likewise
    from eventonce.web.events import EVENTS_CHANNEL  # noqa: PLC0415  likewise

    log_to_stderr(log_format)
    table_ = settings.file.serve
    asked = msgspec.structs.replace(
        with_environment(table_),
        host=host or table_.host,
        port=table_.port if port is None else port,
        anyone_may_send_events=anyone_may_send_events or table_.anyone_may_send_events,
    )
    settings = checked_settings(settings, dashboard, serve=asked, tap=tap)
    bounds = limits(asked)
    ways = Authenticator(asked).ways
    consumer = settings.consumer(handler, command="serve")
    tally = Tally()
    consumer.observers += [tally, to_log(every=verbose)]
    with (
        consumer,
        server.listen(asked) as listening,
        tapping(tap or settings.file.tap, consumer) as tapped,
        recording_shadows(settings.file, consumer),
        maintained(consumer.admin, consumer.runtime.retention),
        keeping_history(settings.file, consumer, EVENTS_CHANNEL),
        watched_by_people(settings, consumer, handler),
        exporting(consumer, EVENTS_CHANNEL),
        rules_reloaded(settings, consumer, handler),
    ):
        # Without authentication, `listen` has refused every address but loopback.
        open_ = msgspec.structs.replace(asked, anyone_may_send_events=True)
        _say(listening.getsockname(), ways)
        server.serve(receiver(consumer, open_, tap=tapped), listening, bounds)
    text = table(tally.counts.most_common()) or "no events were received"
    emit({"statuses": tally.counts}, text)


def _say(address: tuple[str, int], ways: list[str]) -> None:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    url = f"http://{host}:{address[1]}/events"
    text = f"listening on {url}; authentication: {' or '.join(ways) or 'none'}"
    emit({"url": url, "authentication": ways}, text)
