"""The command line: its frame, its groups and its exit codes; each command has its own module."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

import click

from eventonce.errors import (
    ConfigError,
    EventonceError,
    SourceUnavailable,
    StoreError,
    StoreMismatch,
)

FAILED: Final = 1
"""Some events failed."""
MISUSED: Final = 2
"""Usage or configuration is wrong; trying again will not help."""
AWAY: Final = 3
"""The store or the queue is unavailable; trying again may help."""

GROUPS: Final = {
    "Start": {
        "demo": "A morning of calls: what recipes lose, and what eventonce does.",
        "init": "Write a commented eventonce.toml.",
        "explain": "Show an event's rule, key parts and key; or compare two events.",
        "filter": "Pass on the events that are new, drop copies.",
        "check": "Check a rule file, and the keys it gives, in CI.",
    },
    "Run": {
        "run": "Work through an SQS queue, or a capture.",
        "serve": "Receive events over HTTP.",
        "store": "Make, upgrade and verify a store: create, migrate, check.",
        "send": "Put events on a bus, a queue or a receiver, several times over.",
        "infra": "Make the AWS resources, or print them: apply, sam, terraform, iam.",
    },
    "Operate": {
        "stats": "Show how full the store is.",
        "show": "Show what the store knows of an event.",
        "letters": "List, show, export and redrive events that were given up.",
        "sweep": "Drop expired records.",
        "forget": "Forget an event, so that it may run again.",
    },
}
"""The commands as the help groups them. Each is loaded from the module of its name when called."""


class Commands(click.Group):
    """Loads a command's module when it is called, and lists commands by what they are for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"eventonce.cli.{cmd_name}").command
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(names.items()))


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every option has an environment twin: --store is EVENTONCE_STORE. "
    "Exit codes: 0 fine, 1 some events failed, 2 usage or configuration, 3 store or queue away.",
)
@click.version_option(package_name="eventonce", message="eventonce %(version)s")
def cli() -> None:
    """Every contact-centre event takes effect once."""


def main(args: list[str] | None = None) -> None:
    """Run a command; what goes wrong is one readable message and an exit code."""
    try:
        code: Any = cli.main(args, prog_name="eventonce", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        click.echo("eventonce: interrupted", err=True)
        code = 130
    except EventonceError as error:
        click.echo(f"eventonce: {error}", err=True)
        code = exit_code(error)
    except OSError as error:
        click.echo(f"eventonce: {error}", err=True)
        code = FAILED
    sys.exit(code if isinstance(code, int) else 0)


def exit_code(error: EventonceError) -> int:
    """The exit code an error asks for."""
    if isinstance(error, ConfigError | StoreMismatch):
        return MISUSED
    return AWAY if isinstance(error, StoreError | SourceUnavailable) else FAILED
