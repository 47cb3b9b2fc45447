"""The command line: its frame, its groups and its exit codes; each command has its own module."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
import msgspec

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
INTERRUPTED: Final = 130
"""Ctrl-C, as shells count it."""

GROUPS: Final = {
    "Start": {
        "demo": "A morning of calls: what recipes lose, and what eventonce does.",
        "init": "Write a commented eventonce.toml.",
        "explain": "Show an event's rule, key parts and key; or compare two events.",
        "filter": "Pass on the events that are new, drop copies, count why.",
        "check": "Check a rule file, and the keys it gives, in CI.",
    },
    "Run": {
        "run": "Work through an SQS queue, or a capture.",
        "serve": "Receive events over HTTP.",
        "store": "Make, upgrade and verify a store: create, migrate, check.",
        "send": "Put events on a bus, a queue or a receiver, several times over.",
        "infra": "Deploy the AWS resources, or print them: apply, sam, terraform, iam.",
    },
    "Operate": {
        "stats": "Show how full the store is.",
        "show": "Show what the store knows of an event.",
        "letters": "List, show, export, redrive and drop dead letters.",
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        suggest(args, self.list_commands(ctx), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(names.items()))


class Subcommands(click.Group):
    """The commands of one command, such as `letters list`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        suggest(args, self.list_commands(ctx), ctx)
        return super().resolve_command(ctx, args)


def suggest(args: Sequence[str], commands: Sequence[str], ctx: click.Context) -> None:
    """Refuse a command that is none of these, and name the one that was probably meant. click
    itself does so only of late, and knows only commands that are loaded."""
    if args and not args[0].startswith("-") and args[0] not in commands:
        near = get_close_matches(args[0], commands, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise click.UsageError(f"No such command {args[0]!r}.{meant}", ctx)


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Configuration may stand in the environment: EVENTONCE_STORE, EVENTONCE_NAME, "
    "EVENTONCE_RULES, EVENTONCE_CONFIG, and for run EVENTONCE_QUEUE. "
    "Exit codes: 0 fine, 1 some events failed, 2 usage or configuration, 3 store or queue away.",
)
@click.version_option(package_name="eventonce", message="eventonce %(version)s")
def cli() -> None:
    """Every contact-centre event is settled once, and none is dropped without proof."""


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; what goes wrong is one readable message and an exit code."""
    given = list(sys.argv[1:] if args is None else args)
    complain = _complaint_in_json if "--json" in given else _complaint
    try:
        code: Any = cli.main(given, prog_name="eventonce", standalone_mode=False)
    except click.ClickException as error:
        complain(error, error.format_message())
        code = error.exit_code
    except click.Abort as error:
        complain(error, "interrupted")
        code = INTERRUPTED
    except EventonceError as error:
        complain(error, str(error))
        code = exit_code(error)
    except OSError as error:
        complain(error, str(error))
        code = FAILED
    sys.exit(code if isinstance(code, int) else 0)


def _complaint(error: BaseException, said: str) -> None:
    if isinstance(error, click.ClickException):
        error.show()
    else:
        click.echo(f"eventonce: {said}", err=True)


def _complaint_in_json(_error: BaseException, said: str) -> None:
    click.echo(msgspec.json.encode({"error": said}), err=True)


def started_as() -> str:
    """What people type to start this, so that a command that is shown works as it stands."""
    typed = sys.argv[0]
    if Path(typed).name == "__main__.py":
        found = shutil.which("python")
        own = found is not None and Path(found).absolute() == Path(sys.executable).absolute()
        return f"{'python' if own else sys.executable} -m eventonce"
    found = shutil.which("eventonce")
    if Path(typed).name != "eventonce" or (found and Path(found).samefile(typed)):
        return "eventonce"
    return typed


def exit_code(error: EventonceError) -> int:
    """The exit code an error asks for."""
    if isinstance(error, ConfigError | StoreMismatch):
        return MISUSED
    return AWAY if isinstance(error, StoreError | SourceUnavailable) else FAILED
