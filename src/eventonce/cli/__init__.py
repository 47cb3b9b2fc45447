"""The command line: groups of commands, errors and exit codes. Each command has a module here."""

from __future__ import annotations

import errno
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
"""Some events failed, or a check found a fault."""
MISUSED: Final = 2
"""The usage or the configuration is wrong; a retry will not help."""
UNAVAILABLE: Final = 3
"""The store or the queue is unavailable; a retry may help."""
INTERRUPTED: Final = 130
"""Ctrl-C; the exit code that shells use."""

GROUPS: Final = {
    "Start": {
        "demo": "Play a day of calls against the usual recipes and eventonce.",
        "init": "Write a commented eventonce.toml.",
        "explain": "Show the rule, the key parts and the key of an event; or compare two events.",
        "filter": "Write the new events, drop copies, and count both.",
        "check": "Check a configuration file, and the keys of your events, in CI.",
    },
    "Study": {
        "capture": "Write events as they arrive: from a queue, a log group, S3 or files.",
        "diagnose": "Say which events of a capture are copies, why, and which key would be right.",
        "backtest": "Try rules, windows and the usual recipes on a capture.",
        "shadow": "Say what rules in shadow mode would have done, and when to switch them on.",
        "sql": "Print rules as a query: which rows of a table are copies.",
        "reconcile": "Say which expected events never arrived.",
        "simulate": "Write a capture of simulated traffic, with the truth about every line.",
    },
    "Run": {
        "run": "Process the events of an SQS queue, or of a capture.",
        "serve": "Receive events over HTTP.",
        "store": "Create, upgrade and check a store.",
        "send": "Send events to a bus, a queue or a receiver, to try a set-up.",
        "infra": "Deploy the AWS resources, or print them: apply, sam, terraform, iam.",
    },
    "Operate": {
        "doctor": "Check a whole set-up, and name each fault with its remedy.",
        "stats": "Count the records and dead letters of the store.",
        "dashboard": "Show rates, stories, workers and dead letters in a browser.",
        "history": "Tell what was decided about a conversation or an event, and why.",
        "workers": "List the workers of the last hour, and the leases that they hold.",
        "show": "Show the record of an event.",
        "letters": "List, group, show, export, redrive and drop dead letters.",
        "audit": "Tell who redrove, dropped, exported or erased what, and how it ended.",
        "sweep": "Delete expired records and old dead letters.",
        "forget": "Delete the record of an event, or all that is kept about a conversation.",
    },
}
"""The commands, in the groups of the help."""

MODULES: Final = {
    "init": "config:init",
    "check": "config:check",
    "backtest": "backtest:command",
    "diagnose": "diagnose:command",
    "filter": "filter:filter_events",
    "infra": "infra:command",
    "reconcile": "reconcile:command",
    **{name: f"store:{name}" for name in ("stats", "show", "sweep")},
}
"""The module and function of a command, if they do not have the command's name."""

LEAST_LIKENESS: Final = 0.75
"""The similarity from which on an unknown name counts as a misspelling of a known one."""

ARGUMENTS: Final = {"store": "uri"}
"""Options that are arguments in some commands, with the name of the argument."""


class Subcommands(click.Group):
    """The subcommands of a command, such as `letters list`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse an unknown command and name the nearest one. Older releases of click name none,
        and newer ones know only commands that are imported."""
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            near = _alike(args[0], names)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)


class Commands(Subcommands):
    """Commands whose modules are imported when they are called, listed in groups."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, function = MODULES.get(cmd_name, f"{cmd_name}:{cmd_name}").partition(":")
        command: click.Command = getattr(import_module(f"eventonce.cli.{module}"), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's signature
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(names.items()))


@click.command(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="Environment variables: EVENTONCE_STORE, EVENTONCE_NAME, EVENTONCE_PRESETS, "
    "EVENTONCE_CONFIG; EVENTONCE_QUEUE for run, EVENTONCE_HISTORY for history, workers, show and "
    "dashboard, EVENTONCE_HEADER for send. "
    "Exit codes: 0 success, 1 some events failed or were not found, or a check found a fault, "
    "2 wrong usage or configuration, 3 store or queue unavailable, 130 interrupted.",
)
@click.version_option(package_name="eventonce", message="eventonce %(version)s")
def cli() -> None:
    """Every contact-centre event is settled once, and none is dropped without proof."""


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; an error is one readable message and an exit code."""
    given = list(sys.argv[1:] if args is None else args)
    complain = _complaint_in_json if "--json" in given else _complaint
    try:
        code: Any = cli.main(given, prog_name="eventonce", standalone_mode=False)
    except click.ClickException as error:
        told = _advised(error) if isinstance(error, click.NoSuchOption) else error
        complain(told, told.format_message())
        code = error.exit_code
    except click.Abort as error:
        complain(error, "interrupted")
        code = INTERRUPTED
    except EventonceError as error:
        complain(error, str(error))
        code = exit_code(error)
    except OSError as error:
        full = "; what was written is not complete: make room, and start again"
        complain(error, str(error) + full * (error.errno == errno.ENOSPC))
        code = FAILED
    sys.exit(code if isinstance(code, int) else 0)


def _alike(typed: str, names: Sequence[str]) -> list[str]:
    begun = [name for name in names if name.startswith(typed)]
    return begun if len(begun) == 1 else get_close_matches(typed, names, n=1, cutoff=LEAST_LIKENESS)


def _advised(error: click.NoSuchOption) -> click.UsageError:
    """Return the error with the argument or option that was probably meant. Click compares options
    with their dashes, which all share: for click, `--store` is like `--json`."""
    typed = error.option_name.lstrip("-")
    context = error.ctx
    parameters = context.command.get_params(context) if context else []
    for one in parameters:
        if isinstance(one, click.Argument) and one.name == ARGUMENTS.get(typed, typed) and context:
            value = one.make_metavar(context).strip("[].…")
            place = f"Write {value} alone: {context.command_path} {value}"
            return click.UsageError(f"{error.message} {place}", context)
    options = [option for one in parameters for option in (*one.opts, *one.secondary_opts)]
    near = _alike(typed, [option[2:] for option in options if option.startswith("--")])
    meant = f" Did you mean '--{near[0]}'?" if near else ""
    return click.UsageError(error.message + meant, context)


def _complaint(error: BaseException, said: str) -> None:
    if isinstance(error, click.ClickException):
        error.show()
    else:
        click.echo(f"eventonce: {said}", err=True)


def _complaint_in_json(_error: BaseException, said: str) -> None:
    click.echo(msgspec.json.encode({"error": said}), err=True)


def started_as() -> str:
    """Return the command that started this process, so that printed commands can be copied."""
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
    """Return the exit code of an error."""
    if isinstance(error, ConfigError | StoreMismatch):
        return MISUSED
    return UNAVAILABLE if isinstance(error, StoreError | SourceUnavailable) else FAILED
