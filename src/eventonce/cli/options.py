"""Options that commands share: the configuration from command line, environment and file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from eventonce import presets
from eventonce.aws import s3
from eventonce.clock import wall_clock
from eventonce.config import DEFAULT_STORE, Config, load
from eventonce.consumer import Consumer
from eventonce.core.masking import masked
from eventonce.core.redaction import arrival
from eventonce.errors import ConfigError, StoreMismatch
from eventonce.privacy import SealedStore, Sealer
from eventonce.rules.instants import asked
from eventonce.sinks import imported
from eventonce.stores import adapter_of, open_schema, open_store
from eventonce.stores.sqlite.admin import make_private

if TYPE_CHECKING:
    from eventonce.study.capture.tap import FileTap

SIZE: Final = 4096
"""Bytes that an event is taken for while its line waits: it is not measured while others wait."""

F = TypeVar("F", bound=Callable[..., Any])


def configured(*names: str, **attributes: Any) -> Callable[[F], F]:
    """An option with an environment variable: `--store` has `EVENTONCE_STORE`.

    For configuration alone. An action or a confirmation is typed: a variable that was set for
    another command must neither answer a question nor choose where events are sent.
    """
    long = next(name for name in names if name.startswith("--"))
    twin = "EVENTONCE_" + long.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=twin, show_envvar=True, **attributes)


def filled(_ctx: click.Context, _param: click.Parameter, given: Any) -> Any:
    """Refuses a text that is empty: with a variable that nobody has set, all would be meant."""
    if given == "" or (isinstance(given, tuple) and "" in given):
        raise click.BadParameter("it is empty; without it all are meant")
    return given


def instant(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    """Milliseconds; a duration is so long ago."""
    if text is None:
        return None
    try:
        return asked(text, wall_clock())
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


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


class PrivateFile(click.File):
    """A file that is made for its owner alone, because it holds events."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The file; one that is written anew is made when it is first written to."""
        if value != "-" and not self.resolve_lazy_flag(value):
            make_private(Path(value))
        found: Any = super().convert(value, param, ctx)
        if hasattr(found, "open"):
            opened, path = found.open, Path(found.name)

            def make_and_open() -> Any:
                make_private(path)
                return opened()

            found.open = make_and_open
        return found


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
        self.path = config
        """The file that an option or the environment names; None for the one of this folder."""
        self._given = {field: value for field, value in given.items() if value}

    @cached_property
    def file(self) -> Config:
        """The file, with the given options in place of its fields."""
        given = {name: [*it] if isinstance(it, tuple) else it for name, it in self._given.items()}
        if "rules" in given:
            given["rule"] = ()
        return msgspec.structs.replace(load(self.path), **given)

    @property
    def given_store(self) -> str | None:
        """The store that an option or the environment names, not the file."""
        return self._given.get("store")

    @property
    def given_name(self) -> str | None:
        """The name that an option or the environment gives, not the file."""
        return self._given.get("name")

    @property
    def in_file(self) -> Config:
        """The file, whatever an option says."""
        return load(self.path)

    def also(self, **given: Any) -> Settings:
        """The same settings with more options."""
        return Settings(**{"config": self.path, **self._given, **given})

    def open_store(self) -> Any:
        """The store, to look at: opening it creates no file and no table. Dead letters and results
        that are sealed are opened with the keys of the file."""
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
        return SealedStore(open_store(uri), self.sealer)

    @cached_property
    def sealer(self) -> Sealer:
        """Seals and opens with the keys of the file."""
        return Sealer(self.file.privacy.sealing_keys)

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
def tapping(path: str, consumer: Consumer) -> Iterator[FileTap | None]:
    """The tap that writes to this file what the consumer's rules let it keep; None without one."""
    if not path:
        yield None
        return
    from eventonce.study.capture.tap import FileTap  # noqa: PLC0415  for those who tap

    # The rules may be others by then.
    with closing(FileTap(Path(path), lambda one: arrival(one, consumer.rules))) as tap:
        yield tap


@contextmanager
def recording_shadows(file: Config, consumer: Consumer) -> Iterator[None]:
    """Record in the file's `shadow_log` what rules in shadow mode decide; nothing without one."""
    if not file.shadow_log:
        yield
        return
    # For those who record.
    from eventonce.history.digests import Digests  # noqa: PLC0415
    from eventonce.runtime.shadow import line_of, shadow_observer  # noqa: PLC0415
    from eventonce.study.capture.tap import BackgroundLines  # noqa: PLC0415

    digests = Digests(file.secret_bytes if file.privacy.digests else ())
    line = partial(line_of, named=partial(digests.of, "id"))
    with closing(BackgroundLines(Path(file.shadow_log), "shadow", line)) as lines:
        observer = shadow_observer(consumer, lambda one: lines.add([one], SIZE))
        consumer.observers.append(observer)
        yield
