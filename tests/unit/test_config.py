"""What `eventonce.toml` says outside its rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventonce import presets
from eventonce.config import Config, load
from eventonce.errors import ConfigError

FILE = """
store = "memory:"
name = "crm"
rules = ["genesys:latest"]

[[rule]]
name = "own"
match = { type = "order.*" }
key = ["detail.id"]

[override]
remember = "30d"
shadow = true
also = ["sha256(detail)"]
"""


def written(folder: Path, text: str) -> Config:
    path = folder / "some.toml"
    path.write_text(text)
    return load(path)


def test_without_a_file_everything_has_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load() == Config()


def test_an_override_takes_the_place_of_every_rules_own_fields(tmp_path: Path) -> None:
    rules = presets.resolve(written(tmp_path, FILE).ruling())
    assert {rule.kind for rule in rules} == {"fact", "state"}
    assert {rule.remember for rule in rules} == {30 * 86_400_000}
    assert all(rule.shadow for rule in rules)
    assert {rule.also for rule in rules if rule.kind == "fact"} == {("sha256(detail)",)}
    assert {rule.also for rule in rules if rule.kind == "state"} == {()}
    plain = presets.resolve(["genesys:latest"])
    assert [rule.key for rule in rules[1:-1]] == [rule.key for rule in plain]
    assert rules[-1].name == "transport-id", "what no rule takes is overridden too"


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("key = ['id']", "override: key cannot be set for all rules"),
        ("remember = 'soon'", "remember: "),
    ],
)
def test_a_wrong_override_is_named(said: str, complaint: str, tmp_path: Path) -> None:
    config = written(tmp_path, f"rules = 'genesys'\n[override]\n{said}\n")
    with pytest.raises(ConfigError, match=complaint):
        config.ruling()


def test_variables_are_filled_in_and_a_missing_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", "elsewhere")
    monkeypatch.delenv("NOWHERE", raising=False)
    assert written(tmp_path, 'store = "redis://${WHERE}"').store == "redis://elsewhere"
    with pytest.raises(ConfigError, match=r"worker: queue: .* no variable NOWHERE"):
        written(tmp_path, '[worker]\nqueue = "${NOWHERE}"')


def test_a_field_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"some\.toml: .*`stroe`"):
        written(tmp_path, 'stroe = "memory:"')


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ('letters = "store"', "letters: queue: write sqs://NAME"),
        ('letters = "sqs://[x"', "letters: queue: write sqs://NAME"),
        ('letters = "sqs://x"\n[worker]\nqueue = "sqs://x"', "letters: .* come round for ever"),
        ('[[sink]]\nto = "table:events"', "table:events.*sqlite: or postgresql:"),
    ],
)
def test_what_can_never_work_is_said_before_the_first_event(
    said: str, complaint: str, tmp_path: Path
) -> None:
    config = written(tmp_path, f'store = "memory:"\n{said}\n')
    with pytest.raises(ConfigError, match=complaint):
        config.consumer()
