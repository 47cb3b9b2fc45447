"""`eventonce serve`: receive events over HTTP and give each to its sink, once."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click
import msgspec

from eventonce.cli.consumers import consumer
from eventonce.cli.options import (
    config_option,
    json_option,
    name_option,
    rules_option,
    store_option,
)
from eventonce.cli.table import table
from eventonce.config import Serve, load
from eventonce.config.checks import check_table
from eventonce.runtime.observers import Tally, to_log


@click.command()
@click.option("--host", help="Where to listen. [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65_535), help="The port; 0 takes a free one. [default: 8080]"
)
@click.option(
    "--handler",
    metavar="MODULE:NAME",
    help="A handler or a Consumer of yours, in place of the sinks.",
)
@click.option(
    "--anyone-may-send-events",
    is_flag=True,
    help="Listen elsewhere than on loopback although no authentication is set.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Log every event's outcome, not only the bad ones."
)
@store_option
@name_option
@rules_option
@config_option
@json_option
def command(
    host: str | None,
    port: int | None,
    handler: str | None,
    store: str | None,
    name: str | None,
    rules: tuple[str, ...],
    config: Path | None,
    *,
    anyone_may_send_events: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Receive events at POST /events, from EventBridge API destinations, webhooks or curl.

    Keys and secrets are named in the file's [serve] table, or in the environment:
    EVENTONCE_API_KEYS, EVENTONCE_USERS (name:password), EVENTONCE_WEBHOOK_SECRETS,
    EVENTONCE_STRIPE_SECRETS, EVENTONCE_SHOPIFY_SECRETS, EVENTONCE_GITHUB_SECRETS and
    EVENTONCE_SNS_TOPICS, several with spaces between. With none of them it listens on loopback
    only.
    """
    from eventonce.web import receiver  # noqa: PLC0415  slow to import
    from eventonce.web.admission import limits  # noqa: PLC0415  likewise
    from eventonce.web.authentication import Authenticator  # noqa: PLC0415  likewise
    from eventonce.web.server import listen, serve  # noqa: PLC0415  an extra, and --help shall do

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    said = load(config)
    settings = msgspec.structs.replace(
        _with_environment(said.serve),
        host=host or said.serve.host,
        port=said.serve.port if port is None else port,
        anyone_may_send_events=anyone_may_send_events or said.serve.anyone_may_send_events,
    )
    check_table("serve", settings)
    bearable = limits(settings)
    ways = Authenticator(settings).ways
    made = consumer(said, handler, command="serve", store=store, name=name, rules=rules)
    tally = Tally()
    made.observers += [tally, to_log()]
    with made, listen(settings) as listening:
        # Whoever reaches it may send: that it is on loopback only was seen to.
        open_ = msgspec.structs.replace(settings, anyone_may_send_events=True)
        _say(listening.getsockname(), ways, as_json=as_json)
        serve(receiver(made, open_), listening, bearable)
    if as_json:
        click.echo(msgspec.json.encode({"statuses": tally.counts}).decode())
    else:
        click.echo(table(tally.counts.most_common()) or "no events came")


def _with_environment(settings: Serve) -> Serve:
    """The settings, with the secrets that the environment names beside those of the file."""
    users = [pair.partition(":") for pair in os.environ.get("EVENTONCE_USERS", "").split()]
    lists = {
        name: [*getattr(settings, name), *os.environ.get(f"EVENTONCE_{name.upper()}", "").split()]
        for name in (
            "api_keys",
            "webhook_secrets",
            "stripe_secrets",
            "shopify_secrets",
            "github_secrets",
            "sns_topics",
        )
    }
    given = {user: password for user, _, password in users}
    return msgspec.structs.replace(settings, users={**settings.users, **given}, **lists)


def _say(address: tuple[str, int], ways: list[str], *, as_json: bool) -> None:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    url = f"http://{host}:{address[1]}/events"
    if as_json:
        click.echo(msgspec.json.encode({"url": url, "authentication": ways}).decode())
    else:
        asked = f"asks for {' or '.join(ways)}" if ways else "asks for no credentials"
        click.echo(f"listening on {url}; {asked}")
