"""Redaction: the values that a rule names are stored nowhere, and a dead letter keeps its key."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from eventonce import Consumer, Job, Reject, Rule, envelope
from eventonce.aws import lambda_handler
from eventonce.cli.options import tapping
from eventonce.core import redaction
from eventonce.envelope.captured import Arrived
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.rules import Ruleset
from eventonce.runtime.observers import to_log
from eventonce.types import Letter
from tests.helpers import call, ruled, statuses
from tests.unit.invoked import record
from tests.unit.test_tap import CONTEXT

NUMBER = "+49 30 901820"
SHAPES = {
    path.stem: json.loads(path.read_bytes())
    for path in sorted((Path(__file__).parents[1] / "shapes").glob("*.json"))
}


def given_up(rule: Rule, event: Any, said: str = f"no customer has {NUMBER}") -> Letter:
    def handler(_: Job) -> None:
        raise Reject(said)

    consumer = Consumer("memory:", rules=[rule], handler=handler)
    assert statuses(consumer.process([event])) == ["dead"]
    (letter,) = consumer.letters()
    return letter


def test_a_dead_letter_has_neither_the_value_nor_a_reason_with_it() -> None:
    event = call(1, caller={"number": NUMBER, "digits": 49309018}, note=None)
    rule = ruled(redact=["detail.caller", "detail.note", "detail.absent"])
    letter = given_up(rule, event, f"no customer has {NUMBER}, nor 49309018")
    assert msgspec.json.decode(letter.event)["detail"] == {
        "call": 1,
        "caller": "[redacted]",
        "note": None,
    }
    assert letter.reason == "rejected by the handler: no customer has [redacted], nor [redacted]"


def test_the_first_value_of_a_repeated_field_is_not_kept() -> None:
    detail = '{"call":1,"caller":"%s"}'
    twice = f'{{"id":"1","detail-type":"call","detail":{detail % NUMBER},"detail":{detail % "b"}}}'
    for event in (twice, json.dumps({"Type": "Notification", "MessageId": "m", "Message": twice})):
        assert b"901820" not in given_up(ruled(redact=["detail.caller"]), event).event


@pytest.mark.parametrize("observed", [True, False])
def test_the_log_has_no_traceback_with_a_redacted_value(
    observed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(_: Job) -> None:
        raise KeyError(NUMBER)

    rule = ruled(redact=["detail.caller"], attempts=1)
    consumer = Consumer("memory:", rules=[rule], handler=handler)
    event = call(1, caller=NUMBER)
    if observed:
        consumer.observers.append(to_log())
        consumer.process([event])
    else:
        lambda_handler(consumer)({"Records": [record("a", body=event.decode())]}, CONTEXT)
    assert "KeyError: '[redacted]'" in caplog.text
    assert NUMBER not in caplog.text


@pytest.mark.parametrize("hidden", ["cause", "context", "group", "note", "nothing"])
def test_the_log_has_no_traceback_whose_cause_context_group_or_note_has_the_value(
    hidden: str, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(_: Job) -> None:
        error = RuntimeError("the customer database failed")
        if hidden == "group":
            error = ExceptionGroup("all failed", [KeyError(NUMBER)])  # type: ignore[assignment]
        if hidden == "note":
            error.add_note(f"asked for {NUMBER}")
        if hidden == "context":
            error.__context__ = KeyError(NUMBER)
        if hidden == "cause":
            error.__cause__ = KeyError(NUMBER)
        raise error

    rule = ruled(redact=["detail.caller"], attempts=1)
    consumer = Consumer("memory:", rules=[rule], handler=handler, observers=[to_log()])
    (outcome,) = consumer.process([call(1, caller=NUMBER)])
    assert NUMBER not in caplog.text
    assert ("Traceback" in caplog.text) is (hidden == "nothing")
    assert ("(its cause: [redacted])" in outcome.reason) is (hidden != "nothing")


@pytest.mark.parametrize(
    "spelled",
    [
        *(repr, ascii, json.dumps, partial(json.dumps, ensure_ascii=False), quote, quote_plus),
        lambda name: repr(name.encode()),
        # As a handler, or the answer of a service, quotes a text that could not be read.
        lambda name: repr(json.dumps({"name": name})),
        lambda name: repr(json.dumps({"name": name}).encode()),
        lambda name: repr(json.dumps({"name": name}, ensure_ascii=False)),
        lambda name: repr(json.dumps({"name": name}, ensure_ascii=False).encode()),
        lambda name: json.dumps(json.dumps({"name": name})),
        lambda name: json.dumps(json.dumps({"name": name}, ensure_ascii=False)),
    ],
)
@pytest.mark.parametrize("name", ['Zoë "O\'Brien"\t& Söhne', "O'Brien", "Briençon", "Brien\\x"])
def test_a_reason_has_the_value_in_no_spelling(name: str, spelled: Callable[[str], str]) -> None:
    letter = given_up(ruled(redact=["detail.name"]), call(1, name=name), f"no {spelled(name)}!")
    assert "Brien" not in letter.reason
    assert "[redacted]" in letter.reason


@pytest.mark.parametrize("quoted", [str, repr, lambda text: repr(text.encode())])
def test_a_reason_has_no_value_in_the_escapes_of_its_sender(quoted: Callable[[str], str]) -> None:
    event = rb'{"detail-type":"call","detail":{"call":1,"name":"Brien\u00C7on\/Z"}}'
    letter = given_up(ruled(redact=["detail.name"]), event, f"no {quoted(event.decode())}")
    assert "Brien" not in letter.reason
    assert '"name":"[redacted]"' in letter.reason


def test_a_reason_has_no_value_of_json_within_a_string_and_each_is_redacted_once() -> None:
    event = call(1, told=json.dumps({"name": NUMBER}), other="redacted", sum=4930901820.0)
    paths = ["detail.told.name", "detail.other", "detail.sum"]
    letter = given_up(ruled(redact=paths), event, f"{NUMBER} redacted 4930901820")
    assert letter.reason == "rejected by the handler: [redacted] [redacted] [redacted]"
    letter = given_up(ruled(redact=["detail.told"]), event)
    assert letter.reason == "rejected by the handler: no customer has [redacted]"


def test_a_redacted_dead_letter_runs_again_under_its_key() -> None:
    seen: list[Any] = []
    rule = ruled(redact=["detail.caller"])
    consumer = Consumer("memory:", rules=[rule], handler=lambda job: seen.append(job.event.detail))
    letter = given_up(rule, call(1, caller=NUMBER))
    consumer.admin.put_letters([msgspec.structs.replace(letter, consumer=consumer.name)])
    assert statuses(consumer.redrive()) == ["done"]
    assert seen == [{"call": 1, "caller": "[redacted]"}]
    assert statuses(consumer.process([call(1, caller=NUMBER)])) == ["duplicate"]


def test_a_value_is_redacted_in_every_item_of_a_list_and_in_json_within_a_string() -> None:
    people = [{"name": "Ann", "role": "agent"}, {"name": "Bob"}, 7, [{"name": "Cy"}]]
    event = call(1, people=people, told=json.dumps({"name": "Dee", "at": 1.50}))
    letter = given_up(ruled(redact=["detail.people.name", "detail.told.name"]), event)
    detail = msgspec.json.decode(letter.event)["detail"]
    assert detail["people"] == [
        {"name": "[redacted]", "role": "agent"},
        {"name": "[redacted]"},
        7,
        [{"name": "[redacted]"}],
    ]
    assert json.loads(detail["told"]) == {"name": "[redacted]", "at": 1.5}


def test_the_bytes_around_a_redacted_value_stay_the_same() -> None:
    event = b'{"id":"1","detail-type":"call","detail":{"call":1,"n":1.50e0,"caller":"x"}}'
    letter = given_up(ruled(redact=["detail.caller"]), event)
    assert letter.event == event.replace(b'"x"', b'"[redacted]"')


def test_an_invalid_event_and_an_unhandled_event_are_redacted_by_their_rules() -> None:
    rule = ruled(redact=["detail.caller"])
    consumer = Consumer("memory:", rules=[rule], unhandled="letter")
    consumer.on("call")(lambda _: None)
    incomplete = {"detail-type": "call", "detail": {"caller": NUMBER}}
    other = ruled(name="other", match="other", redact=["detail.caller"])
    assert statuses(consumer.process([incomplete])) == ["invalid"]
    consumer.use(Ruleset([rule, other], name=consumer.name))
    assert statuses(consumer.process([call(2, type="other", caller=NUMBER)])) == ["dead"]
    letters = list(consumer.letters())
    assert [NUMBER.encode() in letter.event for letter in letters] == [False, False]
    assert [b"[redacted]" in letter.event for letter in letters] == [True, True]


def test_dead_letters_that_differ_only_in_a_redacted_value_are_two() -> None:
    consumer = Consumer("memory:", rules=[ruled(redact=["detail.caller"])], handler=print)
    incomplete = {"detail-type": "call", "detail": {"caller": NUMBER}}
    consumer.process([incomplete, {**incomplete, "detail": {"caller": "+49 89 1234"}}])
    assert len(list(consumer.letters())) == 2


def test_bytes_that_are_no_event_have_no_rule_and_are_kept_whole() -> None:
    consumer = Consumer("memory:", rules=[ruled(redact=["detail.caller"])], handler=print)
    consumer.process([b"caller=" + NUMBER.encode()])
    (letter,) = consumer.letters()
    assert NUMBER.encode() in letter.event


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["[", "[x]", "{", '{"name": 1', "[[]]", '{"name": "Eve"}', '"', "\\"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "a", "b"]), inner, max_size=3)
        | inner.map(json.dumps)
    ),
    max_leaves=12,
)


@given(ANY, ANY, st.sampled_from(["detail.it", "detail.it.name", "detail.it.a.name", "body.it.b"]))
def test_any_value_at_the_path_is_redacted_and_no_other_value(
    it: Any, other: Any, path: str
) -> None:
    written = {"detail-type": "call", "detail": {"it": it, "other": other}, "more": other}
    event = envelope.read(json.dumps(written))
    redaction.without_values("a reason", event, [path])
    again = json.loads(redaction.encode(event, [path]))
    assert again["detail"]["other"] == other
    assert again["more"] == other
    assert set(at(again["detail"], tuple(path.split(".")[1:]))) <= {"[redacted]", None}


@pytest.mark.parametrize("value", ["1" * 5000, "1e999", '"\\ud83d\\ude00"'])
def test_values_that_python_cannot_hold_or_writes_otherwise_are_redacted(value: str) -> None:
    raw = f'{{"detail-type":"call","detail":{{"it":{value},"other":{value}}}}}'
    event, said = envelope.read(raw), f"not {value}, nor {value}"
    # The value at the path is no object, and has no field.
    assert redaction.encode(event, ["detail.it.name"]) == raw.encode()
    assert redaction.without_values(said, event, ["detail.it.name"]) == said
    kept = raw.replace(value, '"[redacted]"', 1)
    assert redaction.encode(event, ["detail.it"]) == kept.encode()
    cleared = said.replace(value.strip('"'), "[redacted]")
    assert redaction.without_values(said, event, ["detail.it"]) == cleared


@pytest.mark.parametrize("deep", ["[" * 700 + "]" * 700, '{"a":' * 700 + "1" + "}" * 700])
def test_a_deep_event_is_redacted_without_an_error(deep: str) -> None:
    raw = f'{{"detail-type":"call","detail":{{"it":{deep},"caller":1}},"more":{deep}}}'.encode()
    event = envelope.read(raw)
    for path in ("detail.it.name", "detail.it", "detail.caller"):
        redaction.without_values("a reason", event, [path])
        assert redaction.encode(event, [path]).endswith(deep.encode() + b"}")


def test_a_redacted_event_keeps_its_part_of_the_request() -> None:
    event = msgspec.structs.replace(envelope.read(call(1, caller=NUMBER)), _number=2)
    assert redaction.redacted(event, ["detail.caller"]).part == event.part


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"redact": ["detail.call"]}, "'detail.call' is read by key 'detail.call'"),
        ({"redact": ["body.call"]}, "'body.call' is read by key 'detail.call'"),
        ({"key": ["detail.call.id"], "redact": ["detail.call"]}, "is read by key"),
        ({"key": ["detail.call"], "redact": ["detail.call.id"]}, "is read by key"),
        ({"key": ["hash(body)"], "redact": ["detail.a"]}, "is read by key 'hash(body)'"),
        ({"key": ["hash(envelope)"], "redact": ["detail.a"]}, "is read by key"),
        ({"key": ["envelope.detail.a"], "redact": ["detail.a"]}, "is read by key"),
        ({"key": ["each(body.people, name)"], "redact": ["body.people.name"]}, "is read by key"),
        (
            {"key": (), "subject": ["detail.a"], "order": "detail.b", "redact": ["detail.a"]},
            "is read by subject 'detail.a'",
        ),
        ({"key": ["id"], "at": "detail.at", "redact": ["detail.at"]}, "is read by at"),
        ({"requires": ["detail.a"], "redact": ["detail.a"]}, "is read by requires"),
        ({"verify": True, "redact": ["detail.a"]}, "is read by verify 'body'"),
        ({"verify": ["detail.a.b"], "redact": ["detail.a"]}, "is read by verify"),
        ({"missing": "run", "redact": ["detail.a"]}, "by missing = 'run'"),
        ({"missing": "hash", "redact": ["detail.a"]}, "by missing = 'hash'"),
        ({"also": [["detail.a"]], "redact": ["detail.a"]}, "is read by also 'detail.a'"),
        ({"also": ["sha256(detail)"], "redact": ["detail.a"]}, "is read by also"),
        ({"redact": ["id"]}, "expected a path that begins with detail. or body."),
        ({"redact": ["headers.x-name"]}, "expected a path that begins with detail. or body."),
        ({"redact": ["envelope.account"]}, "expected a path that begins with detail. or body."),
        ({"redact": ["detail"]}, "expected a path that begins with detail. or body."),
        ({"redact": ["detail.topicName"]}, "the envelope of some events is read there"),
        ({"redact": ["body.organizationId"]}, "the envelope of some events is read there"),
        ({"redact": ["detail.eventBody"]}, "the envelope of some events is read there"),
    ],
)
def test_a_field_that_a_rule_reads_cannot_be_redacted(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ruled(**fields)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"state": ["detail.status"]},
        {"ignore": ["body.caller"]},
    ],
)
def test_a_state_redacts_only_fields_that_do_not_distinguish_its_versions(
    fields: dict[str, Any],
) -> None:
    state = partial(Rule, name="s", subject=["detail.call"], order="detail.at")
    with pytest.raises(ConfigError, match=r"state 'hash\(body\)', which is the default"):
        state(redact=["body.caller"])
    assert state(redact=["body.caller"], **fields).redact == ("body.caller",)


def places(value: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The places of all values in objects; the items of a list share one place."""
    if isinstance(value, list):
        return [place for item in value for place in places(item, above)]
    if not isinstance(value, dict):
        return []
    found = [(*above, name) for name in value]
    return found + [it for name, item in value.items() for it in places(item, (*above, name))]


def text_of(root: str, place: tuple[str, ...]) -> str:
    return ".".join([root, *(json.dumps(step) for step in place)])


def on_bus(form: Callable[[str], Any], event: Any) -> Any:
    """The message of a Custom Event Bus."""
    said = {"aws:EventId": "e", "aws:Source": "s", "aws:DetailType": "t"}
    return json.dumps({"SystemMetadata": said, "Data": form(json.dumps(event))})


CARRIERS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda event: event,
    "as text": json.dumps,
    "in a message": lambda event: {
        "messageId": "m",
        "body": json.dumps(event),
        "receiptHandle": "",
    },
    "with a detail in a string": lambda event: (
        {**event, "detail": json.dumps(event["detail"])}
        if isinstance(event.get("detail"), dict)
        else event
    ),
    "on a custom bus": partial(on_bus, json.loads),
    "on a custom bus, as text": partial(on_bus, str),
}


@given(
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(sorted(CARRIERS)),
    st.sampled_from(["detail", "body"]),
    st.data(),
)
def test_a_redacted_event_has_its_rule_and_its_claim(
    shape: str, carrier: str, root: str, data: st.DataObject
) -> None:
    event = envelope.read(CARRIERS[carrier](SHAPES[shape]))
    tree = event.detail if root == "detail" else event.body
    assume(isinstance(tree, dict))
    found = sorted(set(places(tree)))
    redact, *key = data.draw(st.lists(st.sampled_from(found), min_size=2, max_size=3, unique=True))
    try:
        rule = Rule(
            name="r",
            key=[f"{text_of(root, one)}?" for one in key],
            redact=[text_of(root, redact)],
        )
        rules = Ruleset([rule], name="crm")
        before = rules.plan(event, 1)
    except (ConfigError, EnvelopeError):
        assume(False)
    kept = redaction.encode(event, rule.redact)
    again = envelope.read(kept, max_bytes=len(kept))
    assert rules.plan(again, 1) == before
    assert (again.id, again.type, again.source, again.time, again.form, again.org) == (
        *(event.id, event.type, event.source, event.time, event.form, event.org),
    )
    value = again.detail if root == "detail" else again.body
    assert set(at(value, redact)) <= {"[redacted]", None}


def at(value: Any, steps: tuple[str, ...]) -> list[Any]:
    if isinstance(value, list):
        return [one for item in value for one in at(item, steps)]
    if not steps:
        return [value]
    return at(value[steps[0]], steps[1:]) if isinstance(value, dict) and steps[0] in value else []


@given(st.text(min_size=3, max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_a_reason_has_no_value_of_a_redacted_field(value: str, before: str, after: str) -> None:
    try:
        event = envelope.read({"detail-type": "call", "detail": {"call": 1, "caller": value}})
    except EnvelopeError:
        assume(False)
    said = redaction.without_values(f"{before}{value}{after}", event, ["detail.caller"])
    assert value not in said.replace("[redacted]", "")


@pytest.mark.parametrize(
    "value", [49170123456, "+49170123456", "+49 (170) 12-34-56", "49/170123456"]
)
@pytest.mark.parametrize(
    "written",
    ["+49 170 123-456", "49170123456", "+49 (170) 123 456", "49.170.123.456", "49\u2011170123456"],
)
def test_a_reason_has_no_number_however_its_digits_are_grouped(value: Any, written: str) -> None:
    event = envelope.read({"detail-type": "call", "detail": {"call": 1, "caller": value}})
    said = redaction.without_values(f"no answer from {written}, twice", event, ["detail.caller"])
    assert said == "no answer from [redacted], twice"


def test_numbers_are_found_beside_and_within_each_other() -> None:
    caller = {"long": 4917012345, "short": 1234567, "other": "+49 30 9018-20"}
    event = envelope.read({"detail-type": "call", "detail": {"call": 1, "caller": caller}})
    text = "49-170-12345 493090 1820 9912-345678 1234567 4917012346 001 4917012345 7"
    said = redaction.without_values(text, event, ["detail.caller"])
    assert said == "[redacted] [redacted] 99[redacted]8 [redacted] 4917012346 001 [redacted] 7"


def test_a_short_number_is_redacted_only_in_its_exact_form() -> None:
    event = envelope.read({"detail-type": "call", "detail": {"call": 1, "caller": 123456}})
    said = redaction.without_values("12-34-56 or 123456", event, ["detail.caller"])
    assert said == "12-34-56 or [redacted]"


def test_a_reason_has_no_name_of_a_field_in_a_redacted_object_unless_the_name_is_a_word() -> None:
    caller = {"Anna Lee": {"+49 170": [{"anna@example.com": 1}]}, "firstName": None}
    event = envelope.read({"detail-type": "call", "detail": {"call": 1, "caller": caller}})
    text = "KeyError: 'Anna Lee', '+49 170', 'anna@example.com', 'firstName', 'call'"
    said = redaction.without_values(text, event, ["detail.caller"])
    hidden = "'[redacted]', '[redacted]', '[redacted]'"
    assert said == f"KeyError: {hidden}, 'firstName', 'call'"


RULES = Ruleset([ruled(redact=["detail.caller"])], name="crm")


@pytest.mark.parametrize("form", [bytes, json.loads, envelope.read, bytes.decode])
def test_a_tap_redacts_the_fields_that_its_rules_name(form: Any) -> None:
    one = Arrived(form(call(1, caller=NUMBER)), "sqs:q", "m-1", 5, 2)
    kept = redaction.arrival(one, RULES)
    assert kept[1:] == one[1:]
    assert NUMBER.encode() not in envelope.encode(envelope.read(kept.body))
    assert redaction.arrival(one, Ruleset([ruled()], name="crm")) is one
    other = Arrived(form(call(1, type="other", caller=NUMBER)), "sqs:q")
    assert redaction.arrival(other, RULES) is other


def test_the_taps_of_commands_and_of_functions_redact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = ruled(redact=["detail.caller"])
    consumer = Consumer("memory:", rules=[rule], handler=lambda _: None)
    with tapping(str(tmp_path / "tap.jsonl"), consumer) as tap:
        assert tap is not None
        tap([Arrived(call(1, caller=NUMBER), "sqs:q")])
    written = (tmp_path / "tap.jsonl").read_text()
    handler = lambda_handler(consumer, tap=True)
    handler({"Records": [record("a", body=call(2, caller=NUMBER).decode())]}, CONTEXT)
    for text in (written, capsys.readouterr().out):
        assert "[redacted]" in text
        assert NUMBER not in text


def test_a_tap_redacts_each_event_of_a_list_and_keeps_invalid_bytes() -> None:
    both = b"[" + call(1, caller=NUMBER) + b"," + call(2, type="other", caller="Ann") + b"]"
    kept = redaction.arrival(Arrived(both, "http"), RULES).body
    assert isinstance(kept, bytes)
    first, second = json.loads(kept)
    assert first["detail"]["caller"] == "[redacted]"
    assert second["detail"]["caller"] == "Ann"
    no_event = Arrived(b"caller", "http")
    assert redaction.arrival(no_event, RULES) is no_event
