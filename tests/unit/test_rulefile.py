"""Rules in Python and in TOML: the values that a rule keeps, and the messages about faults."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from eventonce.config import Config
from eventonce.errors import ConfigError
from eventonce.rules import Match, Rule, Ruleset, tomltext
from eventonce.rules.tomltext import ELSEWHERE, parse_rule_file
from tests.unit.made import event

FULL = """
# everything a rule can say
[[rule]]
name = "calls"
match = { source = "aws.partner/genesys.com/*", type = ["v2.detail.*", "v2.users.*"] }
requires = ["body.conversationId"]
key = ["body.conversationId", "body.eventTime"]
at = "body.eventTime"
ignore = ["detail.metadata"]
verify = ["body.queueId"]
missing = "hash"
remember = "14d"
sliding = true
lease = 30
attempts = 7
on_store_error = "run"
on_replay = "force"
shadow = true
also = [["body.conversationId"], "sha256(detail)"]

[[rule]]
name = "presence"
match = "v2.users.*.presence"
subject = "topic(2)"
order = "body.modifiedDate"
state = ["body.presenceDefinition.id"]
unchanged_within = "500ms"
"""


def test_a_rule_file_gives_the_same_rules_as_python() -> None:
    assert parse_rule_file(FULL, name="eventonce.toml") == [
        Rule(
            name="calls",
            match={"source": "aws.partner/genesys.com/*", "type": ["v2.detail.*", "v2.users.*"]},
            requires="body.conversationId",
            key=["body.conversationId", "body.eventTime"],
            at="body.eventTime",
            ignore=("detail.metadata",),
            verify=["body.queueId"],
            missing="hash",
            remember="14d",
            sliding=True,
            lease="30s",
            attempts=7,
            on_store_error="run",
            on_replay="force",
            shadow=True,
            also=[["body.conversationId"], "sha256(detail)"],
        ),
        Rule(
            name="presence",
            match=["v2.users.*.presence"],
            subject=["topic(2)"],
            order="body.modifiedDate",
            state="body.presenceDefinition.id",
            unchanged_within=0.5,
        ),
    ]


def test_a_rule_keeps_lists_as_tuples_and_durations_in_milliseconds() -> None:
    rule = Rule(name="r", match="v2.*", key="id", lease=30, remember="1d", verify=["detail.a"])
    assert (rule.match, rule.key) == (Match(type=("v2.*",)), ("id",))
    assert (rule.lease, rule.remember, rule.unchanged_within) == (30_000, 86_400_000, 0)
    assert rule.verify == ("detail.a",)
    assert hash(rule) == hash(msgspec.structs.replace(rule))


def test_a_rule_has_these_defaults() -> None:
    rule = Rule(name="r", key="id")
    assert (rule.remember, rule.lease, rule.attempts) == (864_000_000, 60_000, 5)
    assert (rule.missing, rule.on_store_error, rule.on_replay) == ("invalid", "retry", "missing")
    assert (rule.sliding, rule.shadow, rule.verify, rule.kind) == (False, False, False, "fact")


def test_a_changed_rule_keeps_its_durations() -> None:
    rule = msgspec.structs.replace(Rule(name="r", key="id", lease="5m"), attempts=9)
    assert (rule.lease, rule.attempts) == (300_000, 9)
    assert msgspec.structs.replace(rule, lease=5).lease == 5000


OWN = '[[rule]]\nname = "r"\nkey = ["id"]\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            '[[rules]]\nname = "r"\nkey = ["id"]\n',
            "f:1: rules: expected only [[rule]] tables",
        ),
        ('[[rules]]\nname = "r"\n', "(did you mean 'rule'?)"),
        (f'presets = ["auto"]\n{OWN}', "f:1: presets: belongs to a whole eventonce.toml"),
        (f'secrets = ["x"]\n{OWN}', "f:1: secrets: belongs to a whole eventonce.toml"),
        (f'{OWN}[override]\nremember = "1d"\n', "f:4: override: belongs to a whole eventonce.toml"),
        (f'store = "memory:"\n{OWN}', "--config, or in Python use eventonce.config.load(path)"),
        (f"colour = 1\n{OWN}", "f:1: colour: expected only [[rule]] tables"),
        ("", "f:1: there is no [[rule]] in it"),
        ("rule = []", "there is no [[rule]] in it"),
    ],
)
def test_a_rule_file_has_only_rules(text: str, complaint: str) -> None:
    assert parse_rule_file(OWN, name="f") == [Rule(name="r", key="id")]
    with pytest.raises(ConfigError) as refused:
        parse_rule_file(text, name="f")
    assert complaint in str(refused.value)


def test_a_misplaced_setting_is_named_together_with_the_faults_of_rules() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_rule_file('store = "memory:"\n[[rule]]\nname = "r"\nkeys = 1\n', name="f")
    found = [line.split(": ")[:2] for line in str(refused.value).splitlines()]
    assert found == [["f:1", "store"], ["f:2", "key of 'r'"], ["f:4", "keys of 'r'"]]


def test_every_other_setting_of_a_whole_file_counts_as_misplaced() -> None:
    assert {*ELSEWHERE, "rule"} == set(Config.__struct_fields__)


FACT: dict[str, Any] = {"name": "r", "key": "id"}
STATE: dict[str, Any] = {"name": "r", "subject": "id", "order": "detail.v"}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"key": "id"}, "name: the name is missing"),
        ({"name": "", "key": "id"}, "name: the name is missing"),
        ({"name": 7, "key": "id"}, "name: expected a string, not 7"),
        ({"name": "\ud800", "key": "id"}, "name: expected a string"),
        ({"name": "r"}, "key: expected a key (a fact), or a subject and an order (a state)"),
        ({**FACT, **STATE}, "subject: a rule has a key (a fact) or a subject (a state), not both"),
        ({"name": "r", "subject": "id"}, "order: a state needs an order"),
        ({**FACT, "order": "detail.v"}, "order: is for states"),
        ({**FACT, "state": ["detail.v"]}, "state: is for states"),
        ({**FACT, "unchanged_within": 1}, "unchanged_within: is for states"),
        ({**STATE, "verify": True}, "verify: is for facts"),
        ({**STATE, "missing": "hash"}, "missing: is for facts"),
        ({**STATE, "on_store_error": "run"}, "on_store_error: is for facts"),
        ({**STATE, "also": ["sha256(detail)"]}, "also: is for facts"),
        ({**FACT, "key": []}, "key: expected a key"),
        ({**FACT, "key": ["nope"]}, "key: 'nope': unknown name"),
        ({**FACT, "key": ["id", "id"]}, "key: names the same part twice"),
        ({**FACT, "key": 7}, "key: expected a string or a list of strings, not 7"),
        ({**FACT, "key": [7]}, "key: expected a string or a list of strings, not [7]"),
        ({**FACT, "at": "hash("}, "at: 'hash(': expected a name"),
        ({**FACT, "requires": ["nope"]}, "requires: 'nope': unknown name"),
        ({**FACT, "ignore": ["topic(1)"]}, "ignore: 'topic(1)': nothing may follow"),
        ({**FACT, "verify": 7}, "verify: expected a string or a list"),
        ({**FACT, "match": {"kind": "x"}}, "match: expected source, type or form, not kind"),
        ({**FACT, "match": 7}, "match: expected a string or a list of strings"),
        (
            {**FACT, "match": {"form": ["cxone", "acmee"]}},
            "match: no event has the form 'acmee'; there are eventbridge, cloudevents, genesys, ",
        ),
        ({**FACT, "match": Match(form=("x*",))}, "match: no event has the form 'x*'; "),
        (
            {**FACT, "missing": "skip"},
            "missing: expected 'invalid' or 'hash' or 'id' or 'run', not 'skip'",
        ),
        ({**FACT, "remember": "10 days"}, "remember: expected a duration such as"),
        ({**FACT, "remember": 0}, "remember: must be greater than 0"),
        ({**FACT, "lease": -1}, "lease: expected a duration such as"),
        ({**FACT, "attempts": 0}, "attempts: expected a whole number from 1"),
        ({**FACT, "attempts": True}, "attempts: expected a whole number from 1"),
        ({**FACT, "sliding": 1}, "sliding: expected true or false, not 1"),
        ({**FACT, "on_store_error": "drop"}, "on_store_error: expected 'retry' or 'run'"),
        ({**FACT, "on_replay": []}, "on_replay: expected 'missing' or 'force' or 'report'"),
        ({**FACT, "also": "id"}, "also: expected a list of older keys"),
        ({**FACT, "also": ["md5(detail)"]}, "also: 'md5(detail)': expected a list of parts"),
        ({**FACT, "also": [["nope"]]}, "also: 'nope': unknown name"),
    ],
)
def test_the_error_for_a_wrong_rule_names_the_field_and_the_expected_value(
    fields: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Rule(**{"name": "", **fields})
    assert fault in str(caught.value)


def test_all_faults_are_found_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Rule(name="r", key=["a", "b"], lease="x", attempts=0, missing="y")
    lines = str(caught.value).splitlines()
    assert lines[0] == "rule 'r':"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "key",
        "key",
        "missing",
        "lease",
        "attempts",
    ]


FAULTY = """\
store = "memory:"

[[rule]]
name = "first"
key = [
  "detail.a",   # fine
  "nope",       # not
]
remember = "10 y"
colour = "red"

# another
[[rule]]
match = { source = "x", kind = "y" }
subject = ["id"]
attempts = 0

[rule.nested]
a = 1

[[ rule ]]   # a third
"name" = "third"
key = ["id"]
'lease' = '''
name = "not a field"
'''

[other]
lease = 7
"""


def test_every_fault_of_a_file_has_its_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rule_file(FAULTY, name="eventonce.toml")
    found = [line.split(": ")[:2] for line in str(caught.value).splitlines()]
    assert found == [
        ["eventonce.toml:1", "store"],
        ["eventonce.toml:5", "key of 'first'"],
        ["eventonce.toml:9", "remember of 'first'"],
        ["eventonce.toml:10", "colour of 'first'"],
        ["eventonce.toml:13", "name"],
        ["eventonce.toml:13", "order"],
        ["eventonce.toml:14", "match"],
        ["eventonce.toml:16", "attempts"],
        ["eventonce.toml:18", "nested"],
        ["eventonce.toml:24", "lease of 'third'"],
        ["eventonce.toml:28", "other"],
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[rule]]\nname = \n", "f.toml:2: not TOML: "),
        ("[[rule]]\nname = 'a", "f.toml:2: not TOML: "),
        ('{"id": 1}\n{"id": 2}\n', "f.toml:1: not TOML: this is JSON, such as a capture; "),
        ("a = 1\nrule = 7\n", "f.toml:2: rule: expected [[rule]] tables"),
        ("[rule]\nname = 'a'\n", "rule: expected [[rule]] tables"),
        ("rule = [1]\n", "f.toml:1: rule: expected [[rule]] tables"),
    ],
)
def test_a_text_that_is_no_rule_file_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rule_file(text, name="f.toml")
    assert complaint in str(caught.value)


def test_lists_over_several_lines_leave_the_line_numbers_correct() -> None:
    text = '[[rule]]\nname = "r"\nkey = ["id"]\nalso = [\n  [\n"id"\n]\n]\nlease = "x"\n'
    with pytest.raises(ConfigError, match=r"f:9: lease of 'r'"):
        parse_rule_file(text, name="f")
    text = '[[rule]]\nname = "r"\nkey = ["id"]\nalso = [\n  ["id"]\n]\nlease = "x"\n'
    with pytest.raises(ConfigError, match=r"f:7: lease of 'r'"):
        parse_rule_file(text, name="f")


def test_dotted_names_and_texts_over_several_lines_leave_the_line_numbers_correct() -> None:
    text = 'a.b = 1\na.c = 2\n[t]\nlong = """\n[[rule]] [ {\nd = 3\n"""\ne = 4\n'
    document = tomltext.read(text, name="my.toml")
    places: list[tuple[str, ...]] = [("a", "b"), ("a", "c"), ("t", "long"), ("t", "e")]
    assert [document.line(place) for place in places] == [1, 2, 4, 8]


def test_an_inline_table_is_a_rule_too() -> None:
    [rule] = parse_rule_file('rule = [{ name = "r", key = ["id"] }]\n', name="f")
    assert Ruleset([rule], name="crm").plan(event(), 1)[0] == rule
