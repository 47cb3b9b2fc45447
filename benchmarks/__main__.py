"""Runs the benchmarks named on the command line, or all; prints a table, and stores the figures."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks import Figure, history


def _line(figure: Figure) -> str:
    asked = ""
    if figure.at_most is not None:
        asked = f"at most {figure.at_most:g}"
    if figure.at_least is not None:
        asked = f"at least {figure.at_least:g}"
    mark = "" if figure.reached else "  NOT REACHED"
    return f"  {figure.what:<56}{figure.value:>12,.3f}  {figure.unit:<14}{asked}{mark}"


def main(names: list[str]) -> None:
    """Run the benchmarks, print the figures and store them."""
    found: list[tuple[str, Figure]] = []
    for name in names or [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]:
        run = getattr(importlib.import_module(f"benchmarks.{name}"), "run", None)
        if run is not None:
            print(name, flush=True)
            for figure in run():
                print(_line(figure), flush=True)
                found.append((name, figure))
    history.keep(found)


main(sys.argv[1:])
