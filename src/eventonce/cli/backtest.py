"""`eventonce backtest`: the results of rules, windows and the usual recipes on a capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from eventonce import presets
from eventonce.cli import FAILED
from eventonce.cli.options import CapturePath, html_option, json_option, values_option
from eventonce.cli.output import counted, emit, table, wrapped
from eventonce.cli.report import check_captures, check_no_pipe, first_sentence, made_by, studying
from eventonce.config import load
from eventonce.errors import ConfigError
from eventonce.rules import Ruleset
from eventonce.sources.files import Capture
from eventonce.sources.inputs import Place
from eventonce.study.backtest import Faults, Result, backtest
from eventonce.study.cost import ASSUMPTIONS
from eventonce.study.examples import read
from eventonce.study.guards import RECIPES, DecidedGuard, Guard, RulesGuard
from eventonce.study.page.backtested import HARMS_NOTE, backtest_page, sentence

ENVELOPE: Final = ("id", "source", "type", "time", "arrived", "channel", "message")
"""The fields that are shown for two events whose details are the same."""
VALUE_SHOWN: Final = 24
"""The most characters of a value that are shown."""


@click.command()
@click.argument("captures", nargs=-1, required=True, type=CapturePath())
@click.option(
    "-p",
    "--presets",
    "named",
    multiple=True,
    metavar="NAME",
    help="A preset to try; repeat the option for several.  [default: auto, without --rules and "
    "--config]",
)
@click.option(
    "-r",
    "--rules",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A TOML file of [[rule]] tables to try, and auto after it; repeat the option for several.",
)
@click.option(
    "-c",
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A whole eventonce.toml to try: its rules, and the presets that it names.",
)
@click.option(
    "--window",
    "windows",
    multiple=True,
    metavar="DURATION",
    help="Try each with this window too, such as 5m or 10d; repeat the option for several.",
)
@click.option("--recipes", is_flag=True, help="Try the usual recipes beside them.")
@click.option(
    "--guard",
    "mine",
    metavar="TEXT",
    help="Try beside them your guard of now: one of the recipes, by a part of its name, such as "
    '"event.id in a cache"; or a file of what it decided, for each line of the capture '
    '{"line": 7, "copy_of": 3} where it dropped and {"line": 3, "copy_of": null} where it ran.',
)
@click.option(
    "--truth",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The truth of a simulated capture: losses and copies that run are counted by it.",
)
@click.option(
    "--crashes",
    type=click.FloatRange(0, 1),
    default=0.001,
    help="The share of deliveries in which the worker dies.",
)
@click.option(
    "--outages",
    type=click.FloatRange(0, 1),
    default=0.001,
    help="The share of minutes in which the store is away.",
)
@click.option(
    "--max-lost",
    type=click.IntRange(0),
    default=0,
    help="Losses of the presets and rules up to which the exit code is 0; without --truth, drops "
    "of other content.",
)
@click.option(
    "--max-copies",
    type=click.IntRange(0),
    default=0,
    help="With --truth: copies that run up to which the exit code is 0.",
)
@html_option
@values_option
@json_option
def command(
    captures: tuple[Place, ...],
    named: tuple[str, ...],
    rules: tuple[str, ...],
    config: str | None,
    windows: tuple[str, ...],
    truth: Path | None,
    crashes: float,
    outages: float,
    max_lost: int,
    max_copies: int,
    page_file: Path | None,
    mine: str | None,
    *,
    recipes: bool,
    values: bool,
) -> int:
    """Try rules on CAPTURES (files, folders, s3://bucket/prefix): what each would have dropped and
    run, with crashes of the worker and outages of the store on the way.

    Rules are tried with the planner and the law of production. Nothing is changed.
    """
    check_captures(captures, page_file)
    check_no_pipe(captures)
    if mine is not None and recipes:
        raise click.UsageError("--recipes tries all recipes: leave out --guard.")
    ours = list(_guards(named, rules, config, windows))
    guards: list[Guard] = [*ours, *(RECIPES if recipes else ())]
    if mine is not None:
        guards.append(_mine(mine))
    unread: list[str] = []
    with studying("backtest") as told:
        capture = Capture(captures, unread=unread, progress=told)
        results = backtest(capture, guards, truth, Faults(crashes, outages))
    pairs = (pair for one in results for pair in (*one.examples, *one.anew_examples, *one.kept))
    events = read(capture, set(chain.from_iterable(pairs)))
    if page_file:
        made = made_by(captures)
        backtest_page(results, events, values=values, made=made).write(page_file)
    shown = _examples(results[: len(ours)], events, values=values)
    emit(list(map(_document, results)), _report(results, shown, known=truth is not None))
    if unread:
        raise ConfigError("; ".join(unread))
    failed = any(
        (one.differing if truth is None else one.lost or 0) > max_lost
        or (one.let_through or 0) > max_copies
        for one in results[: len(ours)]
    )
    return FAILED if failed else 0


def _guards(
    named: Sequence[str], files: Sequence[str], config: str | None, windows: Sequence[str]
) -> Iterator[RulesGuard]:
    specs: list[tuple[str, Sequence[presets.Spec]]] = [(name, [name]) for name in named]
    specs += [(file, [file, "auto"]) for file in files]
    if config is not None:
        specs.append((config, load(config).all_rules()))
    for name, spec in specs or [("auto", ["auto"])]:
        yield RulesGuard(f"eventonce {name}", Ruleset(presets.resolve(spec), name="study"))
        for window in windows:
            changed = presets.overridden(spec, remember=window)
            yield RulesGuard(f"eventonce {name}, {window}", Ruleset(changed, name="study"))


def _mine(text: str) -> Guard:
    """Return the guard of this file of decisions, or the one recipe whose name contains this
    text."""
    file = Path(text)
    if file.is_file():
        return DecidedGuard(file)
    found = [recipe for recipe in RECIPES if text.casefold() in recipe.name.casefold()]
    if len(found) != 1:
        names = "\n".join(f"  {recipe.name}" for recipe in found or RECIPES)
        raise click.BadParameter(
            f"{text!r} must name a file, or one of these recipes:\n{names}", param_hint="--guard"
        )
    return found[0]


def _document(result: Result) -> dict[str, Any]:
    shares = {"recall": result.recall, "precision": result.precision}
    return {**msgspec.to_builtins(result), **shares}


def _report(results: Sequence[Result], examples: str, *, known: bool) -> str:
    if known:
        head: tuple[str, ...] = ("lost", "copies run")
        wrong: list[tuple[int | None, ...]] = [(one.lost, one.let_through) for one in results]
        notes = (
            "superseded: versions that a state rule need not run, older than the one applied or "
            "the same state."
        )
    else:
        head = ("other content", "written anew", "runs alike")
        wrong = [(one.differing, one.written_anew, one.alike) for one in results]
        notes = HARMS_NOTE
    rows = [
        (*counts, one.ran, one.dropped, one.superseded, one.guard)
        for counts, one in zip(wrong, results, strict=True)
    ]
    head = (*head, "ran", "dropped", "superseded", "guard")
    letters = results[0].dead_letters
    said = first_sentence(sentence(results))
    if letters:
        said += f"\n{counted(letters, 'line')} would become dead letters: no event, or no key."
    compared = table(rows, head=head, indent=2, wrap=True)
    parts = [said, compared, wrapped(notes), _costs(results), examples]
    return "\n\n".join(filter(None, parts))


def _costs(results: Sequence[Result]) -> str:
    rows = [
        (cost.events, cost.dollars, cost.records, *cost.megabytes(" "), one.guard)
        for one in results
        if (cost := one.cost)
    ]
    if not rows:
        return ""
    head = ("events", "DynamoDB", "records", "Redis", "PostgreSQL", "SQLite", "a month with")
    return f"{table(rows, head=head, indent=2, wrap=True)}\n\n{wrapped(ASSUMPTIONS)}"


def _examples(
    results: Sequence[Result], events: Mapping[int, Mapping[str, Any]], *, values: bool
) -> str:
    """Return examples: dropped events that differ from the event they were taken for a copy of, and
    events that ran although an earlier one had the same content."""
    texts: dict[tuple[str, ...], str] = {}
    for one in results:
        pairs = [(pair, "differs in") for pair in one.examples]
        pairs += [(pair, "differs only in what is written anew") for pair in one.anew_examples]
        for (line, beside), how in pairs:
            rows = list(_differences(events[beside], events[line], values=values))
            title = f"{one.guard}: line {line} is dropped as a copy of line {beside}, and {how}"
            texts.setdefault(
                tuple(row[0] for row in rows), f"{wrapped(title)}\n{table(rows, indent=2)}"
            )
        for line, first in one.kept[:1]:
            rows = list(_differences(events[first], events[line], values=values, roots=ENVELOPE))
            title = f"{one.guard}: line {line} runs, though its content is that of line {first}"
            if rows:
                title += ", and differs in"
            texts[one.guard, "kept"] = f"{wrapped(title)}\n{table(rows, indent=2)}".rstrip()
    return "\n\n".join(texts.values())


def _differences(
    first: Mapping[str, Any],
    copy: Mapping[str, Any],
    *,
    values: bool,
    roots: tuple[str, ...] = ("detail",),
) -> Iterator[tuple[str, ...]]:
    for path in {**first, **copy}:
        before, after = first.get(path), copy.get(path)
        if before != after and path.startswith(roots):
            shown = (str(before)[:VALUE_SHOWN], str(after)[:VALUE_SHOWN]) if values else ()
            yield (path, *shown)
