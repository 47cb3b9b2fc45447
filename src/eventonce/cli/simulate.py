"""`eventonce simulate`: the traffic of a contact centre as it arrives, with the truth beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import BufferedWriter, RawIOBase
from pathlib import Path
from typing import IO, Any, cast

import click
import msgspec

from eventonce.cli.options import json_option
from eventonce.cli.output import check_files, counted, emit, standard_output, whole_file, with_table
from eventonce.errors import ConfigError
from eventonce.sources.compression import written
from eventonce.study.simulate import SOURCES, Scenario, capture
from eventonce.study.simulate.world import Rates

file_option = click.Path(path_type=Path, dir_okay=False)


def _rates(
    ctx: click.Context,  # noqa: ARG001  click's signature
    param: click.Parameter,  # noqa: ARG001  likewise
    given: Sequence[str],
) -> Rates:
    names = dict(zip(Rates.__struct_encode_fields__, Rates.__struct_fields__, strict=True))
    shares = dict.fromkeys(names.values(), 0.0) if "none" in given else {}
    for text in given:
        name, _, share = text.partition("=")
        if text == "none":
            continue
        if name not in names:
            raise click.BadParameter(f"{name!r} must be one of {', '.join(names)}, or none.")
        try:
            shares[names[name]] = float(share)
        except ValueError:
            raise click.BadParameter(f"{text!r} must be NAME=SHARE, such as {name}=0.01.") from None
        if not 0 <= shares[names[name]] <= 1:
            raise click.BadParameter(f"the share of {name} must be between 0 and 1.")
    return Rates(**shares)


@click.command()
@click.option(
    "--events", type=click.IntRange(1), default=10_000, help="About how many lines are written."
)
@click.option("--seed", type=int, default=1, help="The same seed gives the same lines.")
@click.option(
    "--source",
    "sources",
    type=click.Choice(tuple(SOURCES)),
    multiple=True,
    default=("genesys",),
    help="Whose events; unknown is a source drawn from the seed, for which there is no preset. "
    "Repeat the option for several.",
)
@click.option(
    "--days",
    type=click.FloatRange(0.01, 3650),
    default=7.0,
    help="The time in which conversations begin; the last copies arrive up to four days later.",
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    callback=_rates,
    metavar="NAME=SHARE",
    help="How often something happens, such as redelivery=0.02; none sets all others to 0. "
    "Repeat the option for several.",
)
@click.option("--bare", is_flag=True, help="Write events alone, without arrival and channel.")
@click.option(
    "-o",
    "--output",
    type=file_option,
    help="The capture; .gz and .zst are compressed.  [default: standard output]",
)
@click.option(
    "--truth",
    type=file_option,
    help="Write the truth here, one JSON object a line: of which line it is a copy, the cause, "
    "and the fact.",
)
@click.option(
    "--expected",
    type=file_option,
    help="Write each event once here, as it was first published, the lost ones too.",
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@json_option
def simulate(
    *, output: Path | None, truth: Path | None, expected: Path | None, force: bool, **scenario: Any
) -> None:
    """Write a capture of simulated traffic: conversations from the first ring to the last wrap-up,
    with redeliveries, overlapping rules, retries, publishes days later, reorderings and losses.

    The truth about every line can be written beside it, so that a guard can be tried on it."""
    check_files([], output, truth, expected)
    for file in (output, truth, expected):
        # It may be a capture of real traffic, which nobody can repeat.
        if file is not None and file.is_file() and not force:
            raise ConfigError(f"{file} exists already; --force overwrites it")
    facts: list[bytes] | None = [] if expected else None
    causes: Counter[str] = Counter()
    encode = msgspec.json.Encoder().encode
    with ExitStack() as files:
        out = files.enter_context(_written(output))
        told = None
        if truth:
            told = files.enter_context(files.enter_context(whole_file(truth)).open("wb", 1 << 20))
        for number, line in enumerate(capture(Scenario(**scenario), facts), start=1):
            out.write(line.text)
            causes[line.cause or "first"] += 1
            if told:
                row = {
                    "line": number,
                    "copy_of": line.copy_of,
                    "cause": line.cause,
                    "fact": line.fact,
                }
                told.write(encode(row) + b"\n")
        out.flush()
        if expected and facts is not None:
            files.enter_context(_written(expected)).writelines(fact + b"\n" for fact in facts)
    lines, first = causes.total(), causes.pop("first", 0)
    head = f"{counted(lines, 'line')}, {counted(causes.total(), 'copy', 'copies')}"
    document = {"lines": lines, "first": first, "copies": causes}
    emit(document, with_table(head, causes.most_common()), err=True)


@contextmanager
def _written(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield standard_output()
        return
    with (
        whole_file(path) as place,
        written(place) as file,
        BufferedWriter(cast("RawIOBase", file), 1 << 20) as stream,
    ):
        yield stream
