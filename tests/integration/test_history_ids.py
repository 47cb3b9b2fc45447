"""The ids and texts in a history: found by value, kept as digests, and forgotten."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventonce import Consumer, Job, Reject, envelope
from eventonce.errors import ConfigError
from eventonce.history import History, Search
from eventonce.history.decision import (
    LONGEST_TEXT,
    NO_VERSION,
    Kind,
    Own,
    conversation_of,
    storable,
)
from eventonce.history.digests import Digests
from eventonce.types import Event
from tests.helpers import call
from tests.integration.histories import consumer


def test_a_conversation_is_forgotten(history: History) -> None:
    made = consumer(history, handler=lambda _: None)
    made.process([call(n, conversationId=f"c-{n % 2}") for n in range(4)])
    history.flush()
    assert history.forget("c-1") == 2
    assert {one.conversation for one in history.find(Search())} == {"c-0"}
    assert history.forget("c-1") == 0
    made.process([call(9)])
    history.flush()
    assert history.forget("") == 0, "what belongs to no conversation stays"


SECRETS = (b"the secret in use, new", b"the secret before it")


@pytest.mark.parametrize("secrets", [(), SECRETS])
def test_an_id_in_the_type_or_the_source_is_not_kept(
    tmp_path: Path, secrets: tuple[bytes, ...]
) -> None:
    def fails(job: Job) -> None:
        raise Reject(f"{'x' * 370} {job.event.detail['conversationId']} {job.event.id}")

    with History(f"sqlite:///{tmp_path}/history.db", secrets=secrets) as history:
        made = consumer(history, handler=fails)
        for name in ("badc0de0-1", "badc0de0-2"):
            event = {
                "id": f"id-of-{name}",
                "detail-type": f"call.{name}/id-of-{name}",
                "source": f"/calls/{name}",
                "detail": {"call": name, "conversationId": name},
            }
            made.process([json.dumps(event).encode()])
        history.flush()
        assert {(one.type, one.source) for one in history.find(Search())} == {
            ("call.{id}/{id}", "/calls/{id}")
        }
        if secrets:
            assert not any("badc" in one.reason for one in history.find(Search()))
        assert history.forget("badc0de0-1") == history.forget("badc0de0-2") == 1
        history.scrub()
    assert b"badc0de0" not in (tmp_path / "history.db").read_bytes()


def test_an_id_that_is_a_word_of_a_type_changes_no_other_event(history: History) -> None:
    made = consumer(history, handler=lambda _: None)
    kept = {"order": "{id}/paid", "id-2": "order/paid", "id-3": "order/paid", "paid": "order/{id}"}
    for names in (("order", "id-2"), ("id-3", "paid")):
        events = [
            {"id": name, "detail-type": "order/paid", "detail": {"call": name}} for name in names
        ]
        made.process([json.dumps(one).encode() for one in events])
        history.flush()
    assert {one.id: one.type for one in history.find(Search())} == kept
    counted: Counter[str] = Counter()
    for _, kind, many, _ in history.counts(0, 2**42):
        counted[kind[-2]] += many
    assert counted == Counter(kept.values())


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("no c-4711 here", "no DIGEST here"),
        ("no xc-4711 here", "no xc-4711 here"),
        ("." * 397 + "c-4711", "." * 397 + "c-4"),
        ("." * 395 + "c-4711", "." * 395),
        ("." * 394 + "c-4711", "." * 394 + "DIGEST"[:6]),
        ("HTTP 401", "HTTP 401"),
    ],
)
def test_an_id_in_a_reason_becomes_its_digest_or_is_removed_where_the_reason_was_cut(
    reason: str, kept: str
) -> None:
    digests = Digests(SECRETS)
    kind: Kind = ("crm", "w1", "", "dead", None, "call", "call", "")
    own: Own = (0, storable(reason), "1", "c-4711", b"", NO_VERSION, 0, 0, 0, 0)
    _, (_, found, _, digest, *_) = digests.kept(kind, own)
    assert found == kept.replace("DIGEST", digest)[:LONGEST_TEXT]


def test_with_a_secret_ids_are_kept_as_digests_and_found_by_value(uri: str) -> None:
    def decided(number: int, *secrets: bytes) -> None:
        with History(uri, secrets=secrets) as writing:
            consumer(writing).process([call(number, id="order-4711", conversationId="4930901820")])

    decided(1)
    decided(2, SECRETS[1])
    decided(3, *SECRETS)
    with History(uri, look=True) as clear:
        kept = clear.find(Search())
    assert [it.conversation == "4930901820" for it in kept] == [True, False, False]
    assert len({it.conversation for it in kept} | {it.id for it in kept}) == 6
    assert all(it.id.startswith("#") and it.conversation.startswith("#") for it in kept[1:])
    with History(uri, secrets=SECRETS) as history:
        for search in (Search(conversation="4930901820"), Search(id="order-4711")):
            assert [it.key for it in history.find(search)] == [it.key for it in kept]
            assert history.find(msgspec.structs.replace(search, type="none")) == []
        # The digest that another command showed finds the decision, too.
        assert history.find(Search(conversation=kept[2].conversation)) == [kept[2]]
        assert history.find(Search(conversation="493090182")) == []
        assert history.forget("4930901820") == 3
        assert history.find(Search()) == []


def test_a_file_with_digests_holds_no_id(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri, secrets=SECRETS) as history:
        consumer(history).process([call(1, id="order-4711", conversationId="4930901820")])
        history.flush()
        found = b"".join(it.read_bytes() for it in tmp_path.iterdir())
    assert b"order-4711" not in found
    assert b"4930901820" not in found
    assert b"sqs:calls" in found


def test_a_search_by_id_without_the_secrets_is_an_error_and_not_an_empty_result(uri: str) -> None:
    with History(uri, secrets=SECRETS) as history:
        consumer(history).process([call(1, conversationId="c-1")])
    with History(uri, look=True) as history:
        for asked in (Search(conversation="c-1"), Search(id="id-1")):
            with pytest.raises(ConfigError, match=r"1 decision cannot be found by an id"):
                history.find(asked)
        with pytest.raises(ConfigError, match=r"1 decision cannot be found by an id"):
            history.forget("c-1")
        (decision,) = history.find(Search())
        assert history.find(Search(conversation=decision.conversation)) == [decision]
        assert history.find(Search(status="dead")) == []
        assert history.forget(decision.conversation) == 1
        assert history.find(Search(conversation="c-1")) == []


def test_decisions_under_a_secret_that_is_not_given_are_counted(uri: str) -> None:
    """A wrong secret finds as little as no secret."""
    for number, used in enumerate(((), SECRETS[1:], SECRETS[:1], SECRETS[:1])):
        with History(uri, secrets=used) as writing:
            consumer(writing).process([call(number, id="e-1", conversationId="c-1")])
    given: dict[tuple[bytes, ...], int] = {
        SECRETS: 0,
        SECRETS[:1]: 1,
        SECRETS[1:]: 2,
        (b"a secret that nobody had",): 3,
        (): 3,
    }
    for secrets, hidden in given.items():
        with History(uri, look=True, secrets=secrets) as history:
            assert history.hidden("conversation", "c-1") == hidden
            assert history.hidden("id", "e-1") == hidden
            for search in (Search(conversation="c-1"), Search(id="e-1")):
                assert len(history.find(search)) == 4 - hidden
            if hidden:
                with pytest.raises(ConfigError, match=f"{hidden} decision"):
                    history.find(Search(conversation="c-2"))
                with pytest.raises(ConfigError, match=f"{hidden} decision"):
                    history.forget("c-1")
            assert history.find(Search(conversation="c-2"), partly=True) == []
    with History(uri, look=True, secrets=SECRETS) as history:
        digest = history.find(Search(conversation="c-1"))[-1].conversation
        assert history.hidden("conversation", digest) == 2, "in clear, and under another secret"
    with History(uri, look=True, secrets=SECRETS[:1]) as history:
        assert history.forget("c-1", partly=True) == 3


def test_digests_under_one_secret_share_a_prefix_and_differ_after_it(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db", secrets=SECRETS) as history:
        consumer(history).process([call(1, id="a", conversationId="b"), call(2, id="c")])
        history.flush()
        names = [it for one in history.find(Search()) for it in (one.id, one.conversation) if it]
    assert len({name[:7] for name in names}) == 1
    assert len({name[7:] for name in names}) == len(names) == 3


def test_the_digests_of_an_event_id_and_an_equal_conversation_id_differ(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db", secrets=SECRETS) as history:
        consumer(history).process([call(1, id="same", conversationId="same")])
        history.flush()
        (decision,) = history.find(Search(id="same", conversation="same"))
        assert decision.id != decision.conversation


def test_an_empty_id_and_an_absent_conversation_have_no_digest(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db", secrets=SECRETS) as history:
        consumer(history).process([call(1, id="")])
        history.flush()
        (decision,) = history.find(Search())
        assert (decision.id, decision.conversation) == ("", "")
        assert history.forget("") == 0


def test_no_text_of_a_sender_keeps_other_decisions_from_being_written(history: History) -> None:
    made = Consumer("memory:", name="crm", handler=lambda _: None)
    made.observers.append(history.observer(made))
    odd = {"id": "a\0b", "detail-type": "t\0", "source": "s\0", "detail": {"contactId": "%' ü"}}
    long = {"id": "x" * 1_000_000, "detail-type": "t", "source": "s", "detail": {}}
    lone = b'{"id": "lone", "detail-type": "t", "source": "\\ud800", "detail": {}}'
    queued = Event(call(2), call(2), type="call", id="id-2", receives=2**40)
    made.process([odd, long, lone, queued, call(1)])
    history.flush()
    assert len(history.find(Search())) == 5
    assert [one.type for one in history.find(Search(id="a\0b"))] == ["t\ufffd"]
    assert [one.id for one in history.find(Search(conversation="%' ü"))] == ["a\ufffdb"]
    assert len(history.find(Search(id="x" * 1_000_000))) == 1
    assert history.find(Search(reason="\ud800\0")) == []


@pytest.mark.parametrize(
    ("written", "conversation"),
    [
        ('"c-1"', "c-1"),
        (r'"\u00fcn\"i\\"', 'ün"i\\'),
        ('"it\'s 100% ü"', "it's 100% ü"),
        (f'"{"x" * 201}"', "x" * 201),
        (f'"{"x" * 400}"', "x" * 400),
        ('"' + r"\u00e9" * 60 + '"', "é" * 60),
        ('"' + r"\u00e9" * 400 + '"', "é" * 400),
        ("1" * 40, "1" * 40),
        (r'"\ud800"', r"\ud800"),
        ("4711", "4711"),
        ("-5", "-5"),
        ("1.5", ""),
        ("1e5", ""),
        ("null", ""),
        ('""', ""),
        ('null}, "to": {"NAME": "c-2"', "c-2"),
        ('"", "to": {"NAME": "c-2"}', "c-2"),
        ('12, "to": {"NAME": "c-2"}', "12"),
        ('"[redacted]"', ""),
        ('"[redacted]", "to": {"NAME": "c-2"}', ""),
        ('"[redacted"', "[redacted"),
        ('"a\\u0000b"', "a\ufffdb"),
        (f'"{"x" * LONGEST_TEXT}"', "x" * LONGEST_TEXT),
    ],
)
@pytest.mark.parametrize("name", ["conversationId", "contactId"])
def test_the_conversation_is_read_from_the_detail_of_an_event(
    written: str, conversation: str, name: str
) -> None:
    raw = f'{{"detail": {{"{name}" : {written.replace("NAME", name)}, "n": 1}}}}'.encode()
    assert conversation_of(Event(raw, raw)) == conversation


LONG_IDS = ["x" * 401, "x" * 402, "é" * 100_000, "x" * 400 + "y"]


def test_a_long_id_is_found_and_not_confused_with_another_long_id(uri: str) -> None:
    with History(uri, secrets=SECRETS if uri.startswith("sqlite") else ()) as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(at, id=f"{it}.", conversationId=it) for at, it in enumerate(LONG_IDS)])
        history.flush()
        for number, name in enumerate(LONG_IDS):
            (found,) = history.find(Search(conversation=name))
            assert history.find(Search(id=f"{name}.")) == [found]
            assert len(found.conversation) <= LONGEST_TEXT
            # Also by the shortened text that is shown.
            assert history.find(Search(conversation=found.conversation)) == [found]
            assert history.forget(name) == 1
            assert len(history.find(Search())) == len(LONG_IDS) - number - 1
    assert conversation_of(envelope.read(call(1, conversationId="x" * 401))).startswith("x" * 367)


def test_the_conversation_of_an_event_that_a_relay_put_into_a_string_is_found() -> None:
    detail = json.dumps({"note": 'a "word"', "conversationId": 'c-"1"'})
    relayed = {"id": "e", "detail-type": "call", "detail": detail}
    on_bus = {"SystemMetadata": {"aws:EventId": "e"}, "Data": detail}
    for one in (relayed, on_bus):
        assert conversation_of(envelope.read(json.dumps(one))) == 'c-"1"'


@pytest.mark.parametrize(
    ("detail", "conversation"),
    [
        ({"conversationId": "c-1"}, "c-1"),
        ({"conversationId": "é-1"}, "é-1"),
        ({"conversationId": 12}, "12"),
        ({"conversationId": "[redacted]"}, ""),
        ({"contactId": "c-1"}, "c-1"),
        ({"note": 'a "word"'}, "outside"),
    ],
)
@pytest.mark.parametrize("relayed", [False, True])
def test_a_conversation_in_the_detail_comes_before_a_conversation_in_the_envelope(
    detail: dict[str, Any], conversation: str, relayed: bool
) -> None:
    event: dict[str, Any] = {"id": "e", "detail-type": "call", "conversationId": "outside"}
    event["detail"] = json.dumps(detail) if relayed else detail
    assert conversation_of(envelope.read(json.dumps(event))) == conversation
