"""Runs the benchmarks named on the command line, or all, and prints a table."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks import Figure


def _line(figure: Figure) -> str:
    asked = ""
    if figure.at_most is not None:
        asked = f"at most {figure.at_most:g}"
    if figure.at_least is not None:
        asked = f"at least {figure.at_least:g}"
    mark = "" if figure.reached else "  NOT REACHED"
    return f"  {figure.what:<56}{figure.value:>12,.3f}  {figure.unit:<14}{asked}{mark}"


def main(names: list[str]) -> None:
    """Run and print."""
    for name in names or [found.name for found in pkgutil.iter_modules(benchmarks.__path__)]:
        run = getattr(importlib.import_module(f"benchmarks.{name}"), "run", None)
        if run is not None:
            print(name, flush=True)
            for figure in run():
                print(_line(figure), flush=True)


main(sys.argv[1:])
