"""The file of `eventonce init`: valid as written, and valid with every example uncommented."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import fields

from eventonce.config import Config, load
from eventonce.rules import Rule
from eventonce.sinks import Sink
from tests.helpers import Run

EXAMPLE = re.compile(r"^# (\[.*\]|\w+ = .*)$", re.MULTILINE)
VARIABLE = re.compile(r"\$\{(\w+)\}")
SECRETS = {"WEBHOOK_SECRET": "whsec_" + "c2VjcmV0" * 4}


@pytest.fixture
def written(run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    text = files("eventonce.cli").joinpath("eventonce.toml").read_text(encoding="utf-8")
    for name in VARIABLE.findall(text):
        monkeypatch.setenv(name, SECRETS.get(name, f"a long random text: {name}"))
    Path("more-rules.toml").write_text('[[rule]]\nname = "more"\nmatch = "more"\nkey = "id"\n')
    assert run("init", "--presets", "genesys").code == 0
    return Path("eventonce.toml").read_text(encoding="utf-8")


Check = Callable[[str], Config]


@pytest.fixture
def check(run: Run) -> Check:
    def check(text: str) -> Config:
        Path("eventonce.toml").write_text(text, encoding="utf-8")
        assert run("check", "eventonce.toml").code == 0
        return load()

    return check


def test_the_written_file_sets_only_store_name_and_presets(check: Check, written: str) -> None:
    config = check(written)
    assert (config.store, config.name) == ("sqlite:///eventonce.db", "my-consumer")
    assert (config.presets, config.rules) == (["genesys"], [])
    assert (config.rule, config.override, config.sink) == ((), {}, [])


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_missing_folder_is_a_usage_error(run: Run, options: list[str]) -> None:
    refused = run("init", "nowhere/eventonce.toml", *options)
    assert refused.code == 2
    assert "cannot be written: No such file or directory" in refused.err


def test_every_example_in_the_file_is_accepted(check: Check, written: str) -> None:
    Path("my_module.py").touch()
    config = check(EXAMPLE.sub(r"\1", written))
    assert [rule.kind for rule in config.rule] == ["fact", "state"]
    assert config.override["remember"] == "20d"
    matched = [sink.match for sink in config.sink]
    assert matched == ["v2.detail.events.conversation.*", "*.acd.start", "*.acd.end", "*"]
    assert config.letters.startswith("sqs://")
    assert config.worker.queue.startswith("sqs://")
    assert config.serve.api_keys == ["a long random text: EVENTONCE_API_KEY"]
    assert config.infra.source == "aws.partner/genesys.com"


def test_the_example_rules_match_events_of_the_demo(run: Run, check: Check, written: str) -> None:
    capture = run("demo", "--events").out
    Path("capture.jsonl").write_text(capture)
    config = check(EXAMPLE.sub(r"\1", written[: written.index("# Fields that replace")]))
    taken = set()
    for number, line in enumerate(capture.splitlines()[:40]):
        Path(f"{number}.json").write_text(line)
        (explained,) = run("explain", f"{number}.json", "--json").documents
        taken.add(explained["rule"])
    assert taken >= {rule.name for rule in config.rule}
    assert run("filter", "capture.jsonl").out.count("\n") > 100


def test_the_file_shows_every_field_of_every_table(written: str) -> None:
    shown: dict[str, set[str]] = {"": set()}
    table = ""
    for head, field in re.findall(r"^#? ?(?:\[+(\w+)\]+$|(\w+) = )", written, re.MULTILINE):
        table = head or table
        shown.setdefault(table, set()).add(field)
    tables: dict[str, type[Struct]] = {"rule": Rule, "sink": Sink, "": Config}
    tables |= {one.name: one.type for one in fields(Config) if isinstance(one.default, Struct)}
    for name, type_ in tables.items():
        # A field that is a table has a heading of its own.
        known = shown[name] | (set(shown) if not name else set())
        assert set(type_.__struct_fields__) - known == set(), name
