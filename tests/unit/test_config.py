"""The settings of `eventonce.toml` outside its rules."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, get_origin

import msgspec
import pytest

from eventonce import presets
from eventonce.config import Config, Serve, WorkerTable, _converted, load
from eventonce.config.references import SECRET_FIELDS
from eventonce.errors import ConfigError
from eventonce.infra.topology import Infra
from eventonce.rules import TRANSPORT
from eventonce.rules.tomltext import Fault, Place
from eventonce.sinks import Sink

FILE = """
store = "memory:"
name = "crm"
presets = ["genesys:latest"]

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


def test_an_override_replaces_the_fields_of_every_rule(tmp_path: Path) -> None:
    rules = written(tmp_path, FILE).all_rules()
    assert {rule.kind for rule in rules} == {"fact", "state"}
    assert {rule.remember for rule in rules} == {30 * 86_400_000}
    assert all(rule.shadow for rule in rules)
    assert {rule.also for rule in rules if rule.kind == "fact"} == {("sha256(detail)",)}
    assert {rule.also for rule in rules if rule.kind == "state"} == {()}
    plain = presets.resolve(["genesys:latest"])
    assert [rule.key for rule in rules[1 : -len(TRANSPORT)]] == [rule.key for rule in plain]
    assert {rule.name for rule in rules[-len(TRANSPORT) :]} == {"transport-id"}, (
        "what no rule takes is overridden too"
    )


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("key = ['id']", "override.key: cannot be set for all rules; it takes remember, sliding"),
        ("remembr = '3d'", r"override.remembr: cannot be set .* \(did you mean 'remember'\?\)"),
        ("remember = '3 days'", "override.remember: expected a duration such as"),
    ],
)
def test_a_wrong_override_is_named_with_its_line_and_no_rule_is_blamed(
    said: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"some\.toml:3: {complaint}") as refused:
        written(tmp_path, f"presets = ['genesys']\n[override]\n{said}\n")
    assert "rule 'genesys" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    ["${flie:/run/key}", "${file:}", "${ssm:${USER}}", "${MY-KEY}", "${}", "${file:a\\u0000b}"],
)
def test_a_malformed_reference_is_refused_as_a_secret(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "crm.toml"
    path.write_text(f'[receiver]\napi_keys = ["a key of many letters {wrong}"]')
    with pytest.raises(
        ConfigError, match=r":2: receiver.api_keys: .* (is not a refer|cannot be r)"
    ):
        load(path)


SPELLINGS = {
    "env:EVENTONCE_SECRET_LONG": "${env:NAME}",
    " ENV:EVENTONCE_SECRET_LONG": "${env:NAME}",
    "env://EVENTONCE_SECRET_LONG": "${env:NAME}",
    "{env:EVENTONCE_SECRET_LONG}": "${env:NAME}",
    "$EVENTONCE_SECRET_LONG": "${env:NAME}",
    "$eventonce_secret_long": "${env:NAME}",
    "$env:EVENTONCE_SECRET_LONG": "${env:NAME}",
    "$(EVENTONCE_SECRET_LONG)": "${env:NAME}",
    "${EVENTONCE_SECRET_LONG": "${env:NAME}",
    "%EVENTONCE_SECRET_LONG%": "${env:NAME}",
    "{{ EVENTONCE_SECRET_LONG }}": "${env:NAME}",
    "file:/run/secrets/eventonce": "${file:PATH}",
    "ssm:/prod/eventonce/secret": "${ssm:NAME}",
    "secretsmanager:prod/eventonce#secret": "${secretsmanager:NAME}",
    "{{resolve:secretsmanager:prod/eventonce}}": "${secretsmanager:NAME}",
    "arn:aws:secretsmanager:eu-central-1:111122223333:secret:eventonce": "${secretsmanager:NAME}",
    "arn:aws-us-gov:ssm:us-gov-west-1:111122223333:parameter/eventonce": "${ssm:NAME}",
}
"""Other spellings of a reference, and the right one."""


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("secrets = [{}]", "secrets"),
        ("[privacy]\nsealing_keys = [{}]", "privacy.sealing_keys"),
        ("[serve]\napi_keys = [{}]", "serve.api_keys"),
        ("[serve]\nusers = {{ ann = {} }}", "serve.users.ann"),
        ("[serve]\nwebhook_secrets = [{}]", "serve.webhook_secrets"),
        ("[serve]\nstripe_secrets = [{}]", "serve.stripe_secrets"),
        ("[serve]\nshopify_secrets = [{}]", "serve.shopify_secrets"),
        ("[serve]\ngithub_secrets = [{}]", "serve.github_secrets"),
        ("[dashboard]\nviewers = {{ ann = {} }}", "dashboard.viewers.ann"),
        ("[dashboard]\noperators = {{ ann = {} }}", "dashboard.operators.ann"),
        (
            "[[sink]]\nto = 'https://h'\nheaders.authorization = {}",
            "sink.headers.authorization",
        ),
    ],
)
def test_a_secret_that_looks_like_a_reference_is_refused_and_not_repeated(
    tmp_path: Path, field: str, place: str
) -> None:
    for wrong, right in SPELLINGS.items():
        with pytest.raises(ConfigError) as refused:
            written(tmp_path, field.format(f"'{wrong}'"))
        line = field.count("\n") + 1
        assert str(refused.value).endswith(
            f"some.toml:{line}: {place}: looks like a reference, and the text itself would be the "
            f"secret; write {right}"
        ), wrong


def test_a_reference_behind_the_scheme_of_a_header_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sink.headers.authorization: looks like a reference"):
        written(tmp_path, "[[sink]]\nto = 'https://h'\nheaders.authorization = 'Bearer $TOKEN'")


@pytest.mark.parametrize(
    "secret",
    ["envelopes:and-files", "$2b$12$abcdefghijklmnop", "50% of $ales, in 2026", "kms-file-ssm-env"],
)
def test_a_secret_that_only_contains_letters_of_a_reference_is_accepted(
    tmp_path: Path, secret: str
) -> None:
    assert written(tmp_path, f"secrets = ['{secret}']").secrets == [secret]


def test_the_value_of_a_reference_is_not_checked_for_another_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD", "env:is-how-this-secret-begins")
    assert written(tmp_path, "secrets = ['${ODD}']").secrets == ["env:is-how-this-secret-begins"]


def test_a_scheme_in_a_field_that_is_no_secret_is_not_taken_for_a_reference(tmp_path: Path) -> None:
    assert written(tmp_path, "[[sink]]\nto = 'file:events.jsonl'").sink[0].to == "file:events.jsonl"


def test_every_field_of_texts_is_a_secret_or_listed_as_no_secret() -> None:
    none = {
        *((name,) for name in ("presets", "rules", "keep_headers", "override", "sink", "rule")),
        *(("serve", "sns_topics"), ("infra", "pattern"), ("infra", "parameters")),
    }
    found: set[Place] = set()
    for one in msgspec.structs.fields(Config):
        if get_origin(one.type) in (list, dict, tuple):
            found.add((one.name,))
        elif isinstance(one.default, msgspec.Struct):
            inner = msgspec.structs.fields(one.type)
            found |= {(one.name, it.name) for it in inner if get_origin(it.type) in (list, dict)}
    assert found - none == set(SECRET_FIELDS) - {("sink", "headers")}


def test_variables_are_filled_in_and_a_missing_variable_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", "elsewhere")
    monkeypatch.delenv("NOWHERE", raising=False)
    assert written(tmp_path, 'store = "redis://${WHERE}"').store == "redis://elsewhere"
    with pytest.raises(ConfigError, match=r":2: worker.queue: .* no variable NOWHERE"):
        written(tmp_path, '[worker]\nqueue = "${NOWHERE}"')


def test_a_field_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        written(tmp_path, 'name = "crm"\nstroe = "memory:"')
    said = "some.toml:2: stroe: there is no such field (did you mean 'store'?); the fields are "
    assert said in str(refused.value)


WRONG = """\
stroe = "memory:"
name = 7
secrets = ["short", "long enough to be one"]

[[rules]]
name = "own"

[[rule]]
name = "own"
keys = ["detail.id"]

[override]
remembr = "3d"

[[sink]]
to = "file:events.jsonl"
[[sink]]
match = "call"

[worker]
queue = "${NOWHERE}"
visibility = true

[serve.users]
crm = 7
"""


def test_all_faults_of_a_file_are_reported_at_once_each_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(ConfigError) as refused:
        written(tmp_path, WRONG)
    said = [line.rpartition("some.toml:")[2] for line in str(refused.value).splitlines()]
    assert [line.split(": ")[:2] for line in said] == [
        ["1", "stroe"],
        ["2", "name"],
        ["3", "secrets"],
        ["5", "rules"],
        ["8", "key of 'own'"],
        ["10", "keys of 'own'"],
        ["13", "override.remembr"],
        ["17", "sink.to"],
        ["21", "worker.queue"],
        ["22", "worker.visibility"],
        ["24", "serve.users"],
    ]
    assert "a rule of your own is a [[rule]] table" in said[3]


@pytest.mark.parametrize("table", [Config, WorkerTable, Serve, Infra, Sink])
def test_a_wrong_value_of_every_field_is_named_in_words(table: type[msgspec.Struct]) -> None:
    day = date(2026, 1, 1)
    given: dict[str, Any] = {name: [day] for name in table.__struct_fields__}
    given |= {name: day for name in ("sink", "rule") if name in given}
    faults: list[Fault] = []
    _converted(table, given, faults)
    assert {fault.place for fault in faults} == {(name,) for name in given}
    assert all(": expected " in fault.said for fault in faults)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("worker = 7", "worker: expected a table, not a whole number"),
        ("sink = 7", "sink: expected a list, not a whole number"),
        ("name = 2026-01-01", "name: expected a string, not a date or time"),
        ("name = {}", "name: expected a string, not a table"),
        ("secrets = ['x', 1]", "secrets[1]: expected a string, not a whole number"),
    ],
)
def test_a_value_of_another_kind_is_named_and_not_shown(
    said: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        written(tmp_path, said)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ('letters = "store"', "letters: queue: 'store' is not the URI of a queue"),
        ('letters = "sqs://[x"', "letters: .* is not a valid URI"),
        ('letters = "sqs://x"\n[worker]\nqueue = "sqs://x"', "letters: .* received again for ever"),
        (
            'letters = "sqs://x"\n[worker]\nqueue = "sqs://x?region=eu-west-1"',
            "letters: .* received again for ever",
        ),
        ('[[sink]]\nto = "table:events"', "table:events.*sqlite: or postgresql:"),
    ],
)
def test_a_setting_that_can_never_work_is_refused_before_the_first_event(
    said: str, complaint: str, tmp_path: Path
) -> None:
    config = written(tmp_path, f'store = "memory:"\n{said}\n')
    with pytest.raises(ConfigError, match=complaint):
        config.consumer()
