"""Options that commands share: the configuration from command line, environment and file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from eventonce import presets
from eventonce.aws import s3
from eventonce.cli.signals import called_by_hangup
from eventonce.clock import wall_clock
from eventonce.config import DEFAULT_STORE, Config, Kept, load
from eventonce.consumer import Consumer
from eventonce.core.masking import masked
from eventonce.errors import ConfigError, EventonceError, StoreMismatch
from eventonce.rules.instants import duration
from eventonce.sinks import imported
from eventonce.stores import adapter_of, open_schema, open_store

if TYPE_CHECKING:
    from eventonce.history import History
    from eventonce.study.capture.tap import FileTap

SIZE: Final = 4096
"""Bytes that an event is taken for while its line waits: it is not measured while others wait."""

RULES: Final = ("presets", "rules", "rule", "override", "secrets")
"""The settings that are read anew while a command runs."""

F = TypeVar("F", bound=Callable[..., Any])


def configured(*names: str, **attributes: Any) -> Callable[[F], F]:
    """An option with an environment variable: `--store` has `EVENTONCE_STORE`.

    For configuration alone. An action or a confirmation is typed: a variable that was set for
    another command must neither answer a question nor choose where events are sent.
    """
    long = next(name for name in names if name.startswith("--"))
    twin = "EVENTONCE_" + long.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=twin, show_envvar=True, **attributes)


def instant(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    """Milliseconds; a duration is so long ago."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            return wall_clock() - duration(text)
        except ValueError:
            raise click.BadParameter(
                f"{text!r} must be a time, such as 2026-11-16T08:00Z, or so long ago, such as 7d."
            ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


class CapturePath(click.Path):
    """Where a capture is: a file or a folder, which exists, or `s3://bucket/prefix`."""

    def __init__(self, *, allow_dash: bool = False) -> None:
        super().__init__(exists=True, allow_dash=allow_dash, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or the URI as it stands."""
        if isinstance(value, str) and value.startswith("s3:"):
            s3.parse(value)
            return value
        return super().convert(value, param, ctx)


def _preset_names(
    ctx: click.Context,  # noqa: ARG001  click's signature
    param: click.Parameter,  # noqa: ARG001  likewise
    incomplete: str,
) -> list[Any]:
    from click.shell_completion import CompletionItem  # noqa: PLC0415  for a shell that asks

    return [
        CompletionItem(name, help=line)
        for name, line in presets.names().items()
        if name.startswith(incomplete)
    ]


config_option = configured(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration file.  [default: eventonce.toml, if it exists]",
)
store_option = configured(
    "-s", "--store", metavar="URI", help="The store, such as sqlite:///file.db."
)
name_option = configured("--name", help="The consumer's name, which is part of every key.")
presets_option = configured(
    "-p",
    "--presets",
    multiple=True,
    metavar="NAME",
    shell_complete=_preset_names,
    help="A preset, instead of the file's presets; repeat the option for several.  [default: auto]",
)
rules_option = click.option(
    "-r",
    "--rules",
    multiple=True,
    metavar="FILE",
    type=click.Path(),
    help="A TOML file of [[rule]] tables, instead of the file's own rules; tried before presets; "
    "repeat the option for several.",
)
html_option = click.option(
    "--html",
    "page_file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write the report here too, as one page with plots that needs no network.",
)
values_option = click.option(
    "--values",
    is_flag=True,
    help="Show the values of examples, not only their fields, in the page too.",
)
handler_option = click.option(
    "--handler",
    metavar="MODULE:NAME",
    help="A handler or a Consumer of yours, instead of the file's sinks.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Log the outcome of every event, not only failures."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Change nothing, and print what would be done."
)
region_option = click.option("--region", help="The AWS region.  [default: as boto3 finds it]")
endpoint_option = click.option(
    "--endpoint", metavar="URL", help="Another endpoint, such as an emulator's."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")

tap_option = click.option(
    "--tap",
    metavar="FILE",
    help="Write every event here as it arrives, a capture for the study; .gz and .zst are "
    "compressed.  [default: tap of the file]",
)

_OPTIONS: Final = {
    "config": config_option,
    "store": store_option,
    "name": name_option,
    "presets": presets_option,
    "rules": rules_option,
}


class Settings:
    """The configuration of a command: options and environment win over the file."""

    def __init__(self, config: Path | None = None, **given: Any) -> None:
        self._path = config
        self._given = {field: value for field, value in given.items() if value}

    @cached_property
    def file(self) -> Config:
        """The file, with the given options in place of its fields."""
        given = {name: [*it] if isinstance(it, tuple) else it for name, it in self._given.items()}
        if "rules" in given:
            given["rule"] = ()
        return msgspec.structs.replace(load(self._path), **given)

    @property
    def given_store(self) -> str | None:
        """The store that an option or the environment names, not the file."""
        return self._given.get("store")

    @property
    def given_name(self) -> str | None:
        """The name that an option or the environment gives, not the file."""
        return self._given.get("name")

    @property
    def name_in_file(self) -> str | None:
        """The name that the file gives, whatever an option says."""
        return load(self._path).name

    def also(self, **given: Any) -> Settings:
        """The same settings with more options."""
        return Settings(self._path, **self._given, **given)

    def open_store(self) -> Any:
        """The store, to look at: opening it creates no file and no table."""
        uri = self.file.store or DEFAULT_STORE
        if adapter_of(uri).schema:
            # Opening a store of this kind creates and upgrades it.
            with closing(open_schema(uri)) as schema:
                try:
                    steps = schema.migrate(dry_run=True)
                except StoreMismatch as error:
                    raise ConfigError(f"{error}; --store names another store") from error
            if steps:
                name = masked(uri)
                raise StoreMismatch(f"{name}: {steps[0]}: eventonce store migrate {name}")
        return open_store(uri)

    def consumer(self, handler: str | None, *, command: str) -> Consumer:
        """The consumer that a command runs: the file's, with its sinks or with this handler
        (`module:name`), or the `Consumer` of that name with its own store, name and rules."""
        if handler is None:
            if not self.file.sink:
                raise ConfigError(
                    f"{command}: no sink and no handler: write a [[sink]] table into "
                    f"eventonce.toml, or name a handler with --handler MODULE:NAME"
                )
            return self.file.consumer()
        target = imported(handler)
        if isinstance(target, Consumer):
            return target
        made = msgspec.structs.replace(self.file, sink=[]).consumer()
        made.on()(target)
        return made


def with_settings(*names: str) -> Callable[[Any], Any]:
    """Options of configuration by their names, given to a command as one `Settings`."""

    def decorate(function: Any) -> Any:
        @wraps(function)
        def command(*args: Any, **given: Any) -> Any:
            chosen = Settings(**{name: given.pop(name) for name in names})
            return function(*args, chosen, **given)

        return options(*(_OPTIONS[name] for name in names))(command)

    return decorate


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that adds these options, in the order in which the help lists them."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether the user confirms; UsageError if standard input has no answer."""
    if yes:
        return True
    try:
        return click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            click.echo(err=True)
            raise click.UsageError(
                "standard input gave no answer; --yes confirms without a question"
            ) from None
        raise


@contextmanager
def tapping(path: str) -> Iterator[FileTap | None]:
    """The tap that writes to this file; None without one."""
    if not path:
        yield None
        return
    from eventonce.study.capture.tap import FileTap  # noqa: PLC0415  for those who tap

    with closing(FileTap(Path(path))) as tap:
        yield tap


@contextmanager
def looking_back(table: Kept) -> Iterator[History | None]:
    """The history that the table names, to look at; None without one, or before it is begun."""
    from eventonce.history import History, recorder  # noqa: PLC0415  for those who keep one

    if not table.store or not recorder.exists(table.store):
        yield None
        return
    with History(table.store, look=True) as history:
        yield history


@contextmanager
def keeping_history(table: Kept, consumer: Consumer, channel: str) -> Iterator[History | None]:
    """Keep what the consumer decides, where the table says so."""
    if not table.store:
        yield None
        return
    from eventonce.history import History  # noqa: PLC0415  for those who keep one

    with History(table.store, keep=table.keep, most=table.most) as history:
        consumer.observers.append(history.observer(consumer.name, channel))
        yield history


@contextmanager
def recording_shadows(path: str, consumer: Consumer) -> Iterator[None]:
    """Record in this file what rules in shadow mode decide; nothing without a file."""
    if not path:
        yield
        return
    # For those who record.
    from eventonce.runtime.shadow import line_of, shadow_observer  # noqa: PLC0415
    from eventonce.study.capture.tap import BackgroundLines  # noqa: PLC0415

    with closing(BackgroundLines(Path(path), "shadow", line_of)) as lines:
        observer = shadow_observer(consumer, lambda one: lines.add([one], SIZE))
        consumer.observers.append(observer)
        yield


@contextmanager
def rules_reloaded(
    settings: Settings, consumer: Consumer, handler: str | None = None
) -> Iterator[None]:
    """SIGHUP reads the rules of the file anew; with a fault in it the old ones stay in use."""
    log = logging.getLogger("eventonce.settings")
    log.setLevel(logging.INFO)
    others = [name for name in Config.__struct_fields__ if name not in RULES]
    before = [getattr(settings.file, name) for name in others]

    def reload() -> None:
        if handler is not None and consumer is imported(handler):
            log.warning("SIGHUP: %s has rules of its own, which need a restart", handler)
            return
        try:
            after = settings.also().file
            rules = after.ruleset(consumer.name)
        except EventonceError as error:
            log.error("SIGHUP: the rules stay as they are: %s", error)  # noqa: TRY400  it says all
            return
        except Exception:
            # It must not end the thread: the next signal finds a better file.
            log.exception("SIGHUP: the rules stay as they are")
            return
        consumer.use(rules)
        log.info("SIGHUP: the rules in use are those of the file now, %d", len(rules.rules))
        if before != [getattr(after, name) for name in others]:
            log.warning("SIGHUP: other settings have changed too, which need a restart")

    with called_by_hangup(reload):
        yield
