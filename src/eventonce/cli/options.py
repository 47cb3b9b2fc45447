"""Options that commands share: the configuration from command line, environment and file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

import click
import msgspec

from eventonce import presets
from eventonce.aws import s3
from eventonce.cli.output import JSON_WANTED, standard_output
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
    from eventonce.envelope.captured import Tap

ASSUMED_BYTES: Final = 4096
"""The assumed size of an event whose line waits, in bytes: measuring it would delay others."""

F = TypeVar("F", bound=Callable[..., Any])


def configured(*names: str, **attributes: Any) -> Callable[[F], F]:
    """Return an option with an environment variable: `--store` has `EVENTONCE_STORE`.

    For configuration alone. An action or a confirmation is typed: a variable that was set for
    another command must neither answer a question nor choose where events are sent.
    """
    long = next(name for name in names if name.startswith("--"))
    twin = "EVENTONCE_" + long.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=twin, show_envvar=True, **attributes)


def filled(_ctx: click.Context, _param: click.Parameter, given: Any) -> Any:
    """Refuse an empty text: with an unset shell variable, the command would mean all."""
    if given == "" or (isinstance(given, tuple) and "" in given):
        raise click.BadParameter("the value is empty; omit the option to select all")
    return given


def instant(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    """Return an instant in milliseconds; a duration means that long ago."""
    if text is None:
        return None
    try:
        return asked(text, wall_clock())
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def placed_uri(uri: str, region: str | None, endpoint: str | None) -> str:
    """Return the URI with the options `--region` and `--endpoint`, unless it has its own."""
    own = dict(parse_qsl(uri.partition("?")[2], keep_blank_values=True))
    given = {"region": region, "endpoint": endpoint}
    more = {name: value for name, value in given.items() if value and name not in own}
    return f"{uri}{'&' if '?' in uri else '?'}{urlencode(more, safe=':/')}" if more else uri


class CapturePath(click.Path):
    """The location of a capture: an existing file or folder, or `s3://bucket/prefix`."""

    def __init__(self, *, allow_dash: bool = False) -> None:
        super().__init__(exists=True, allow_dash=allow_dash, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or the URI unchanged."""
        if isinstance(value, str) and value.startswith("s3:"):
            s3.parse(value)
            return value
        return super().convert(value, param, ctx)


class PrivateFile(click.File):
    """A file that only its owner can read, because it holds events."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Open the file; a file to overwrite is created at the first write."""
        if value == "-":
            standard_output()
        elif not Path(value).resolve().parent.is_dir():
            self.fail(f"the folder of {value!r} does not exist; create it.", param, ctx)
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
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, _param, asked: ctx.meta.update({JSON_WANTED: asked}),
    help="Print JSON.",
)
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
        """The file that an option or the environment names; None for the file of this folder."""
        self._given = {field: value for field, value in given.items() if value}

    @cached_property
    def file(self) -> Config:
        """The configuration of the file; given options replace its fields."""
        given = {name: [*it] if isinstance(it, tuple) else it for name, it in self._given.items()}
        if "rules" in given:
            given["rule"] = ()
        return msgspec.structs.replace(load(self.path), **given)

    @property
    def given_store(self) -> str | None:
        """The store from an option or the environment, not from the file."""
        return self._given.get("store")

    @property
    def given_name(self) -> str | None:
        """The name from an option or the environment, not from the file."""
        return self._given.get("name")

    @property
    def in_file(self) -> Config:
        """The configuration of the file, without options."""
        return load(self.path)

    def also(self, **given: Any) -> Settings:
        """Return the same settings with more options."""
        return Settings(**{"config": self.path, **self._given, **given})

    def open_store(self) -> Any:
        """Open the store for reading; no file and no table is created. The keys of the file open
        sealed dead letters and results."""
        uri = self.file.store or DEFAULT_STORE
        if adapter_of(uri).schema:
            # Opening a store of this kind creates it.
            with closing(open_schema(uri)) as schema:
                try:
                    steps = schema.migrate(dry_run=True)
                except StoreMismatch as error:
                    fault = str(error).removesuffix(".")
                    raise ConfigError(f"{fault}; --store names another store") from error
            if steps:
                name = masked(uri)
                raise StoreMismatch(f"{name}: {steps[0]}: eventonce store migrate {name}")
        return SealedStore(open_store(uri), self.sealer)

    @cached_property
    def sealer(self) -> Sealer:
        """Return the sealer with the keys of the file."""
        return Sealer(self.file.privacy.sealing_keys)

    def consumer(self, handler: str | None, *, command: str) -> Consumer:
        """Return the consumer that a command runs: the file's, with its sinks or with this handler
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
    """Add these configuration options to a command, which gets them as one `Settings`."""

    def decorate(function: Any) -> Any:
        @wraps(function)
        def command(*args: Any, **given: Any) -> Any:
            chosen = Settings(**{name: given.pop(name) for name in names})
            return function(*args, chosen, **given)

        return options(*(_OPTIONS[name] for name in names))(command)

    return decorate


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds these options, in the order of the help."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask the user, and return whether the answer is yes; UsageError without an answer."""
    if yes:
        return True
    silent = click.UsageError("standard input gave no answer; --yes confirms without a question")
    if sys.stdin is None or sys.stderr is None:
        raise silent
    try:
        return click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            click.echo(err=True)
            raise silent from None
        raise


def tapping(path: str, consumer: Consumer) -> AbstractContextManager[Tap | None]:
    """Open the tap to this file, without the values that the rules redact; None without a file."""
    if not path:
        return nullcontext()
    from eventonce.envelope.captured import Arrived, line_of  # noqa: PLC0415  for those who tap
    from eventonce.study.capture.tap import FileTap  # noqa: PLC0415  likewise

    def line(one: Arrived) -> bytes:
        # Read at each event, because a reload may change the rules.
        return line_of(arrival(one, consumer.rules))

    return closing(FileTap(Path(path), line=line))


def recording_shadows(file: Config, consumer: Consumer) -> AbstractContextManager[object]:
    """Record the decisions of rules in shadow mode to the file's `shadow_log`, if there is one."""
    if not file.shadow_log:
        return nullcontext()
    # Imported only if there is a shadow log.
    from eventonce.history.digests import Digests  # noqa: PLC0415
    from eventonce.runtime.shadow import line_of, shadow_observer  # noqa: PLC0415
    from eventonce.study.capture.tap import BackgroundLines  # noqa: PLC0415

    digests = Digests(file.secret_bytes if file.privacy.digests else ())
    line = partial(line_of, named=partial(digests.of, "id"))
    lines = BackgroundLines(
        Path(file.shadow_log), name="shadow", line=line, size=lambda _: ASSUMED_BYTES
    )
    consumer.observers.append(shadow_observer(consumer, lambda one: lines([one])))
    return closing(lines)
