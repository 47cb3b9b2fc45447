"""`python -m tests.mutation [FILE …]`: plant each mutant in a fork of a warm process; is it caught?

One process collects the tests, and notes once which lines each of them runs. For a mutant it forks,
changes the code in place, and runs the tests that run the changed line, those first that run little
else. What is run at an import is changed by importing everything anew.
The answers are kept as lines of JSON; whatever is answered there is not asked again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from importlib import import_module
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

import pytest

from tests.mutation.operators import Mutant, mutants

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "eventonce"
CACHE: Final = ROOT / ".cache" / "mutation"
ANSWERS: Final = CACHE / "answers.jsonl"
FILES: Final = ("core/*.py", "runtime/*.py", "stores/memory.py", "stores/sqlite/*.py")
UNIT: Final = """aio alone aws_invocation batches consumer consumer_given engine explain forks gate
gate_timer groups hard_cases interrupted keys lane ledger ledger_facts ledger_settle
ledger_states letters limits looked_after loops masking memory memory_interrupted observe packing
proof reasons redrive renewal replays replays_cli settled_meanwhile shadow shared_ids slots stages
store_cli store_uri timeout unhandled worker_parts worker_whole"""
TESTS: Final = (
    *(f"tests/unit/test_{name}.py" for name in UNIT.split()),
    *(str(path) for path in ROOT.glob("tests/integration/test_sqlite*.py")),
    *("tests/simulation/test_gate.py", "tests/simulation/test_simulator.py"),
    "tests/contract/test_stores.py",
)
OPTIONS: Final = (
    *("-p", "no:xdist", "-sx", "--no-header", "--assert=plain", "--hypothesis-profile", "quick"),
    # Not those that take many seconds.
    *("-k", "not (test_race or every_history or textbook or sqlite_crashes or sqlite_interrupted)"),
)
JOBS: Final = 2
BUDGET: Final = 5.0
"""Seconds for the tests of one mutant, as long as they took when they were traced."""
PATIENCE: Final = 5
"""Seconds that a test waits at the most for what a mutant may keep from happening."""
TERMINAL: Final = os.dup(2)
Traces = dict[str, tuple[float, dict[str, list[int]] | None]]
"""Of each test: the seconds it takes, waits included, and the lines that it runs of each file; None
where it is red with nothing planted."""


def main() -> int:
    """Ask what becomes of the mutants; print those that survive, and a line for each file."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("files", nargs="*", help="below src/eventonce; the default: all known")
    parser.add_argument("--sample", type=int, help="so many mutants of each file, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="ask again for those that survived")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files that pytest collects")
    given = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    asked: list[Mutant] = []
    for file in [file for pattern in given.files or FILES for file in SOURCE.glob(pattern)]:
        found = mutants(ROOT, str(file.relative_to(ROOT)))
        # A larger sample of the same seed begins with the smaller one.
        random.Random(given.seed).shuffle(found)
        asked += found[: given.sample]
    pytest.main([*OPTIONS, *given.tests], plugins=[Warm(asked, again=given.again)])
    answers = _answers()
    counts: dict[str, Counter[str]] = {}
    for mutant in asked:
        fate = answers.get(mutant.name, {"fate": "not asked"})["fate"]
        counts.setdefault(mutant.file, Counter())[fate] += 1
        if fate == "survived":
            _say(f"{mutant.file}:{mutant.line}  {mutant.function}\n    {mutant.change}")
    for file_name, fates in counts.items():
        says = ", ".join(f"{many} {fate}" for fate, many in sorted(fates.items()))
        _say(f"{file_name}: {fates.total()} mutants, {says}")
    return 1 if any(fates["survived"] for fates in counts.values()) else 0


def _say(line: str) -> None:
    os.write(TERMINAL, f"{line}\n".encode())


def _answers() -> dict[str, dict[str, Any]]:
    """The last answer for each mutant."""
    lines = ANSWERS.read_text(encoding="utf-8").splitlines() if ANSWERS.exists() else []
    return {answer["name"]: answer for answer in map(json.loads, lines)}


class Red:
    """Notes which test fails; where names are given, these tests are run, in their order."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.red = ""
        self._order = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._order:
            known = (item for item in items if item.nodeid in self._order)
            items[:] = sorted(known, key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.red = report.nodeid


class Warm:
    """In the place of pytest's loop over the tests: a fork for each mutant."""

    def __init__(self, asked: Sequence[Mutant], *, again: bool) -> None:
        known = _answers()
        done = {name for name, it in known.items() if not again or it["fate"] != "survived"}
        self._asked = [mutant for mutant in asked if mutant.name not in done]
        self._reds = Red()
        self._lines: set[tuple[str, int]] = set()
        self._tracing = False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.register(self._reds)
        items = {item.nodeid: item for item in session.items}
        traces = self._traced(items)
        for file in {mutant.file for mutant in self._asked}:
            # Some are imported when they are needed.
            import_module(file.removeprefix("src/").removesuffix(".py").replace("/", "."))
        functions = [one for one in gc.get_objects() if type(one) is FunctionType]
        functions = [one for one in functions if one.__code__.co_filename.startswith(str(SOURCE))]
        shards = []
        for shard in range(JOBS):
            child = os.fork()
            if not child:
                for mutant in self._asked[shard::JOBS]:
                    self._ask(mutant, items, traces, functions)
                os._exit(0)
            shards.append(child)
        for child in shards:
            os.waitpid(child, 0)
        return True

    def _run(self, items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, str]]:
        """Run these, and say of each whether it is red."""
        for item, following in zip(items, [*items[1:], None], strict=True):
            self._reds.red = ""
            if self._tracing:
                # Each time: some tests trace, too.
                threading.settrace(self._line)
                sys.settrace(self._line)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item, self._reds.red

    def _traced(self, items: dict[str, pytest.Item]) -> Traces:
        """The cost of each test, and the lines that it runs; noted anew when a file has changed."""
        digest = blake2b()
        for path in sorted([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
            digest.update(path.read_bytes())
        file = CACHE / f"traces-{digest.hexdigest()[:16]}.json"
        traces: Traces = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        missing = [item for name, item in items.items() if name not in traces]
        if missing:
            traces |= _in_fork(lambda: self._trace(missing), limit=3600)
            file.write_text(json.dumps(traces), encoding="utf-8")
        return {name: traces[name] for name in items if traces[name][1] is not None}

    def _trace(self, items: Sequence[pytest.Item]) -> Traces:
        traces: Traces = {}
        self._tracing = True
        began = time.monotonic()
        for item, red in self._run(items):
            lines: dict[str, list[int]] = {}
            # Another thread of the test may still add to it.
            for file, line in self._lines.copy():
                lines.setdefault(file[len(str(ROOT)) + 1 :], []).append(line)
            traces[item.nodeid] = (time.monotonic() - began, None if red else lines)
            if red:
                _say(f"red with nothing planted, and left out: {red}")
            self._lines.clear()
            began = time.monotonic()
        return traces

    def _line(self, frame: FrameType, _: str, __: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(str(SOURCE)):
            return None
        self._lines.add((file, frame.f_lineno))
        return self._line

    def _ask(
        self,
        mutant: Mutant,
        items: dict[str, pytest.Item],
        traces: Traces,
        functions: Sequence[FunctionType],
    ) -> None:
        names = _chosen(mutant, traces)
        began = time.monotonic()

        def red() -> str:
            for name, module in [*sys.modules.items()]:
                if name.startswith("tests.") and hasattr(module, "PATIENCE"):
                    setattr(module, "PATIENCE", min(PATIENCE, module.PATIENCE))  # noqa: B010
            if not mutant.function:
                return _afresh(mutant, names)
            _plant(mutant, functions)
            return next((red for _, red in self._run([items[name] for name in names]) if red), "")

        limit = 20 + 10 * sum(traces[name][0] for name in names)
        by = _in_fork(red, limit) if names else ""
        fate = "timeout" if by is None else "killed" if by else "survived"
        took = round(time.monotonic() - began, 1)
        answer = {"name": mutant.name, "fate": fate, "by": by, "tests": len(names), "took": took}
        with ANSWERS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(answer) + "\n")


def _chosen(mutant: Mutant, traces: Traces) -> list[str]:
    """The tests that run the line, those first that are about its file, within the budget."""
    about: dict[str, float] = {}
    for wanted in ([mutant.line], mutant.body):
        for name, (_, traced) in traces.items() if not about else ():
            lines = traced or {}
            own = lines.get(mutant.file, [])
            if not mutant.function:
                # What is run at the import may be held by a test that runs nothing else.
                about[name] = Path(mutant.file).stem in name
            elif not {*wanted}.isdisjoint(own):
                about[name] = len(own) / sum(map(len, lines.values()))
    names = sorted(about, key=lambda name: (traces[name][0] > BUDGET / 4, -about[name]))
    costs = accumulate(traces[name][0] for name in names)
    return [name for name, cost in zip(names, costs, strict=True) if cost < BUDGET]


def _outermost(code: CodeType) -> str:
    return code.co_qualname.partition(".<locals>")[0]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _plant(mutant: Mutant, functions: Sequence[FunctionType]) -> None:
    """Give the changed function, and those inside it, their new code, whoever refers to them."""
    filename = str(ROOT / mutant.file)
    changed = {
        (code.co_qualname, code.co_firstlineno): code
        for code in _codes(compile(mutant.plant(), filename, "exec", dont_inherit=True))
        if _outermost(code) == mutant.function
    }
    for function in functions:
        code = function.__code__
        if code.co_filename == filename:
            function.__code__ = changed.get((code.co_qualname, code.co_firstlineno), code)


def _afresh(mutant: Mutant, names: Sequence[str]) -> str:
    """Import everything of ours anew, this module changed, and run the tests in a new session."""
    filename = str(ROOT / mutant.file)
    code = compile(mutant.plant(), filename, "exec", dont_inherit=True)
    original = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return code if loader.path == filename else original(loader, name)

    setattr(SourceFileLoader, "get_code", get_code)  # noqa: B010
    for name in [name for name in sys.modules if name.partition(".")[0] in ("eventonce", "tests")]:
        del sys.modules[name]
    reds = Red(names)
    end = pytest.main([*OPTIONS, *{name.partition("::")[0] for name in names}], plugins=[reds])
    return "" if end == 0 else reds.red or "the import"


def _in_fork(work: Callable[[], Any], limit: float) -> Any:
    """The answer of this call in a process of its own; None if it has not ended after so many
    seconds."""
    folder = Path(tempfile.mkdtemp(prefix="eventonce-mutation-"))
    folder.chmod(0o755)
    child = os.fork()
    if not child:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(folder)
        try:
            answer = work()
        except BaseException as error:  # noqa: BLE001  whatever it is, the mutant made it
            answer = repr(error)
        (folder / "answer").write_text(json.dumps(answer), encoding="utf-8")
        os._exit(0)
    end = time.monotonic() + limit
    while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < end:
        time.sleep(0.005)
    # With all that it has started.
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
    said = folder / "answer"
    text = said.read_text(encoding="utf-8") if said.exists() else '"the process ended"'
    shutil.rmtree(folder, ignore_errors=True)
    return json.loads(text) if ended else None


if __name__ == "__main__":
    sys.exit(main())
