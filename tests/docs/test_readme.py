"""The README is true: its code and its commands do what it shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, presets
from eventonce.cli import main
from eventonce.rules.tomltext import read, rules_in
from tests.helpers import Run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXTRAS = re.compile(r"[./]\w*\[([\w,]+)\]")
SHAPE = ROOT / "tests" / "shapes" / "genesys_acd_end_voice.json"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


class Crm:
    def __init__(self) -> None:
        self.closed: list[str] = []

    def close_call(self, body: dict[str, Any], idempotency_key: str) -> None:
        self.closed.append(idempotency_key)


def user_end(session: str, id: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(SHAPE.read_text())
    event["id"] = id
    for where, field in ((event, "detail-type"), (event["detail"], "topicName")):
        where[field] = where[field].replace("acd.end", "user.end")
    event["detail"]["eventBody"]["sessionId"] = session
    return event


def test_the_code_at_the_top_runs_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    crm = Crm()
    events = [user_end("a", "1"), user_end("b", "2"), user_end("a", "3")]
    scope: dict[str, Any] = {"crm": crm, "events": events}
    exec(blocks("python")[0], scope)
    consumer: Consumer = scope["consumer"]
    assert len(crm.closed) == 2
    assert "duplicate" in capsys.readouterr().out
    (again,) = consumer.process([user_end("a", "4")])
    assert again.reason == "the same again under another transport id"
    assert again.reason in README
    consumer.close()


def test_the_test_of_a_handler_runs_as_shown(pytester: pytest.Pytester) -> None:
    test = next(block for block in blocks("python") if "crash_after" in block)
    setting = f"""
class Crm:
    closed = []
crm = Crm()
event = {user_end("a", "1")!r}
seen = set()
def wrap_up(job):
    if job.effect_id not in seen:
        seen.add(job.effect_id)
        crm.closed.append("call-1")
"""
    pytester.makepyfile(setting + test)
    pytester.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_explain_prints_the_output_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("event.json").write_bytes(SHAPE.read_bytes())
    (block,) = (block for block in blocks("console") if "genesys.session" in block)
    command, _, shown = block.partition("\n")
    with pytest.raises(SystemExit):
        main(command.removeprefix("$ eventonce ").split())
    assert capsys.readouterr().out == shown


def test_filter_prints_the_output_that_is_shown_for_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)

    def said(*args: str) -> tuple[bytes, bytes]:
        with pytest.raises(SystemExit) as ended:
            main(list(args))
        assert not ended.value.code
        return capfdbinary.readouterr()

    Path("capture.jsonl").write_bytes(said("demo", "--events")[0])
    (block,) = (block for block in blocks("console") if "duplicate" in block)
    command, _, shown = block.partition("\n")
    new, told = said(*command.removeprefix("$ eventonce ").removesuffix(" > new.jsonl").split())
    assert told.decode() == shown
    assert f", {len(new.splitlines())} new" in shown


def test_the_command_for_a_template_prints_it_with_the_names_of_the_command_and_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("eventonce.toml").write_text(blocks("toml")[0])

    def printed(command: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(command.split())
        said = capsys.readouterr()
        assert not ended.value.code, said.err
        return said.out

    (command,) = re.findall(r"^\$ eventonce (infra sam .*?) >", README, re.MULTILINE)
    template = printed(command)
    default = r'^  (\w+):\n    Type: .*\n    Default: "(.*)"$'
    defaults = dict(re.findall(default, template, re.MULTILINE))
    assert "com.example.shop" in defaults["EventPattern"]
    assert defaults["StoreUri"] == "dynamodb://orders"
    assert defaults["ConsumerName"] == "orders"
    # The file shown has the same name, which counts without the option.
    assert printed(command.replace(" --name orders", "")) == template


@pytest.mark.parametrize("text", blocks("toml"))
def test_the_rules_shown_are_valid_and_the_warning_of_check_is_named(text: str, run: Run) -> None:
    rules, faults = rules_in(read(text, name="README.md"))
    assert rules
    assert not faults
    Path("eventonce.toml").write_text(text)
    found = run("check")
    assert found.code == 0
    warned = set(re.findall(r"'(\S+)' matches no event type", found.err))
    assert warned <= set(re.findall(r"no preset knows the type `(\S+)`", README))
    assert len(warned) == len(found.err.splitlines())


def test_the_event_of_the_demo_has_the_rule_and_the_parts_that_are_shown(run: Run) -> None:
    (wanted,) = re.findall(r"`grep -m1 (\S+) capture.jsonl > event.json`", README)
    lines = run("demo", "--events").out.splitlines()
    Path("event.json").write_text(next(line for line in lines if wanted in line))
    (block,) = (block for block in blocks("console") if "genesys.session" in block)
    said = run("explain", "event.json").out
    first_words = [[line.split()[0] for line in text.splitlines()] for text in (block, said)]
    assert first_words[0][1:] == first_words[1]
    assert said.splitlines()[:2] == block.splitlines()[1:3]


def test_the_rule_shown_takes_an_event_of_a_new_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("eventonce.toml").write_text(blocks("toml")[0])
    detail = {"order": {"id": "o-1"}, "status": "paid"}
    event = {"id": "1", "source": "com.example.shop", "detail-type": "order.paid", "detail": detail}
    Path("event.json").write_text(json.dumps(event))
    with pytest.raises(SystemExit):
        main(["explain", "event.json"])
    assert "order (fact)" in capsys.readouterr().out


def test_every_preset_is_described() -> None:
    page = (ROOT / "docs" / "presets.md").read_text()
    for preset in presets.names():
        assert f"`{preset}`" in page, preset


def test_no_link_is_broken() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_install_commands_name_a_clone_and_known_extras() -> None:
    """eventonce is on no package index: a page that names it there would end in an error."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*/*.md")]
    said = [line for page in pages for line in re.findall(r"pip install .*", page.read_text())]
    assert len(said) > 10
    assert not [line for line in said if re.search(r"install \"?eventonce\b", line)]
    extras = {name for line in said for one in EXTRAS.findall(line) for name in one.split(",")}
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras <= set(known["optional-dependencies"])


@pytest.mark.parametrize("extra", ["redis", "dynamodb", "sqs", "postgres", "web", "privacy"])
def test_an_extra_of_the_installed_eventonce_needs_no_package_index(extra: str) -> None:
    """pip reads the requirements of an extra from the installed eventonce, from a clone too."""
    wanted = ["install", "--dry-run", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *wanted, f"eventonce[{extra}]"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["fastapi_app", "http_postgres", "lambda_sqs", "worker_sqlite"])
def test_an_example_without_its_packages_says_how_to_install_them(name: str) -> None:
    """The example runs in a Python without any package."""
    folder = ROOT / "examples" / name
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(folder / "run.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert done.stderr.startswith("this example needs eventonce, ")
    (line,) = re.findall(r"`(pip install .*?)`", (folder / "README.md").read_text())
    assert line in done.stderr
    assert "make examples" in done.stderr
