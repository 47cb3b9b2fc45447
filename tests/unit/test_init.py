"""What `eventonce init` writes: right as it stands, and right with every example taken in."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from eventonce.cli import main
from eventonce.config import Config, load
from eventonce.rules import Rule

EXAMPLE = re.compile(r"^# (\[.*\]|\w+ = .*)$", re.MULTILINE)
VARIABLE = re.compile(r"\$\{(\w+)\}")
SECRETS = {"WEBHOOK_SECRET": "whsec_" + "c2VjcmV0" * 4}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    text = files("eventonce.cli").joinpath("eventonce.toml").read_text(encoding="utf-8")
    for name in VARIABLE.findall(text):
        monkeypatch.setenv(name, SECRETS.get(name, f"a long random text: {name}"))
    Path("more-rules.toml").write_text('[[rule]]\nname = "more"\nmatch = "more"\nkey = "id"\n')
    with pytest.raises(SystemExit):
        main(["init", "--presets", "genesys"])
    return Path("eventonce.toml").read_text(encoding="utf-8")


def check(text: str) -> Config:
    Path("eventonce.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["check", "eventonce.toml"])
    assert not ended.value.code
    return load()


def test_as_it_stands_it_names_store_name_and_rules(written: str) -> None:
    config = check(written)
    assert (config.store, config.name) == ("sqlite:///eventonce.db", "my-consumer")
    assert (config.presets, config.rules) == (["genesys"], [])
    assert (config.rule, config.override, config.sink) == ((), {}, [])


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_folder_that_is_not_there_is_a_matter_of_usage(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["init", str(tmp_path / "nowhere" / "eventonce.toml"), *options])
    assert ended.value.code == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_every_example_in_it_is_accepted(written: str) -> None:
    Path("my_module.py").touch()
    config = check(EXAMPLE.sub(r"\1", written))
    assert [rule.kind for rule in config.rule] == ["fact", "state"]
    assert config.override["remember"] == "20d"
    assert [sink.match for sink in config.sink] == ["v2.detail.events.conversation.*", "*"]
    assert config.letters.startswith("sqs://")
    assert config.worker.queue.startswith("sqs://")
    assert config.serve.api_keys == ["a long random text: EVENTONCE_API_KEY"]
    assert config.infra.source == "aws.partner/genesys.com"


def test_the_rules_in_it_take_events_of_the_demo(
    written: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def ran(*args: str) -> bytes:
        with pytest.raises(SystemExit) as ended:
            main(list(args))
        assert not ended.value.code
        return capsysbinary.readouterr().out

    Path("capture.jsonl").write_bytes(ran("demo", "--events"))
    only_rules = written[: written.index("# Fields that replace")]
    config = check(EXAMPLE.sub(r"\1", only_rules))
    capsysbinary.readouterr()
    taken = set()
    for number, line in enumerate(Path("capture.jsonl").read_bytes().splitlines()[:40]):
        Path(f"{number}.json").write_bytes(line)
        taken.add(json.loads(ran("explain", f"{number}.json", "--json"))["rule"])
    assert taken >= {rule.name for rule in config.rule}
    assert ran("filter", "capture.jsonl").count(b"\n") > 100


def test_it_shows_every_table_and_every_field_of_a_rule(written: str) -> None:
    shown = set(re.findall(r"^#? ?(?:\[+)?(\w+)(?:\]+| = )", written, re.MULTILINE))
    assert set(Config.__struct_fields__) <= shown
    assert set(Rule.__struct_fields__) <= shown
