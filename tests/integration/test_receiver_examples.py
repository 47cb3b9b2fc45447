"""The examples of the receiver: the code of its page, and the programs in `examples/`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eventonce import Consumer
from eventonce.web import Serve
from tests.helpers import PATIENCE
from tests.servers import missing
from tests.servers.postgres import postgres18
from tests.servers.receiver import receiving
from tests.unit.asking import ask

ROOT = Path(__file__).parents[2]


PAGE = (ROOT / "docs" / "receiver.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_begins_with_an_example_that_works(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        missing("curl is not installed")
    (tmp_path / "handlers.py").write_text(blocks("python")[0])
    # However slow this machine is, the answer must have the outcome.
    settings = blocks("toml")[0] + '\n[serve]\nanswer_within = "1m"\n'
    with receiving(tmp_path, settings) as serving:
        command = blocks("sh")[1].replace(":8080/", f":{serving.port}/")
        said = [
            subprocess.run(
                command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=True
            ).stdout
            for _ in range(2)
        ]
        assert serving.process.stdout is not None
        assert serving.process.stdout.readline().startswith("closing 7 as ")
    shown = [json.loads(line) for line in blocks("json")[0].splitlines()]
    for answer, expected in zip(map(json.loads, said), shown, strict=True):
        expected["events"][0]["key"] = answer["events"][0]["key"]
        assert answer == expected


def test_the_fastapi_example_of_the_page_mounts_the_receiver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    exec(next(block for block in blocks("python") if "FastAPI" in block), scope)
    answer = ask(scope["app"], [], path="/hooks/events", headers={"x-api-key": "no"})
    assert answer.status == 401
    consumer = scope["consumer"]
    assert isinstance(consumer, Consumer)
    consumer.close()


def test_the_page_names_every_setting_and_the_defaults_of_all_limits() -> None:
    table = PAGE[PAGE.index("## Settings") : PAGE.index("## Paths")]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    told = {name: row[-2].strip() for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert told.keys() == set(Serve.__struct_fields__)
    defaults = Serve()
    for count in ("max_body", "max_events", "max_in_flight", "concurrency"):
        assert told[count] == f"{getattr(defaults, count):,}"
    for time in ("header_timeout", "body_timeout", "answer_within", "drain"):
        assert told[time] == f"`{getattr(defaults, time)}`"


def run(example: str) -> list[str]:
    """The output of the example. On a slow machine a receiver answers 429 after 4.5 seconds, before
    the handler has ended: then the example is run again."""
    for _ in range(3):
        said = _ran(example)
        if not any(line.split()[1:2] == ["429"] for line in said):
            break
    return said


def _ran(example: str) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example / "run.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_fastapi_books_each_payment_once_and_refuses_a_wrong_signature() -> None:
    said = run("fastapi_app")
    assert said[-1] == "booked {'a1': 42}"
    shown = (ROOT / "examples" / "fastapi_app" / "README.md").read_text()
    assert "\n".join(said) in shown


def test_http_with_postgres_books_each_call_once_although_a_receiver_dies_at_the_worst_moment() -> (
    None
):
    postgres18()
    said = run("http_postgres")
    assert said[0] == "call-one no answer: the receiver died"
    assert said[-4:] == [
        "bookings",
        "  call-one  3 minutes",
        "  call-three  5 minutes",
        "  call-two  3 minutes",
    ]
    assert sum(line.startswith("call-one 200") for line in said) == 3
