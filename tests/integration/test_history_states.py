"""The history of states and copies on both databases: the subject of a key, and the event that took
effect before a copy."""

from __future__ import annotations

from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventonce import Consumer, Rule
from eventonce.errors import ConfigError
from eventonce.history import History, Search, recorder, subjects
from eventonce.history import search as search_module
from eventonce.history.decision import LONGEST_TEXT, id_kept
from eventonce.history.story import told
from eventonce.history.winners import with_winners
from eventonce.rules import Ruleset
from eventonce.types import Event
from tests.helpers import PATIENCE

AGENT = Rule(
    name="agent",
    match="agent",
    subject=["detail.user", "detail.queue?"],
    order="detail.at",
    state=["detail.status"],
    at="detail.at",
    unchanged_within="1h",
)
CALL = Rule(name="call", match="call", key=["detail.call"], verify=["detail.said"])
SECRETS = (b"the secret in use, new", b"the secret before it")
NOON = 1_780_000_000_000


def consumer(history: History, name: str = "crm", rules: Any = (AGENT, CALL)) -> Consumer:
    made = Consumer("memory:", name=name, rules=[*rules], handler=lambda _: None)
    made.observers.append(history.observer(made))
    return made


def event(id: str, type: str, **detail: Any) -> bytes:
    return msgspec.json.encode({"id": id, "detail-type": type, "detail": detail})


def agent(id: str, version: int, status: str = "", user: str = "u-1", **more: Any) -> bytes:
    return event(id, "agent", user=user, at=NOON + version, status=status or id, **more)


def rows(history: History) -> list[tuple[Any, ...]]:
    with history._tables() as tables:
        found = tables._driver.rows(f"SELECT subject FROM {subjects.SUBJECTS} ORDER BY subject")
        tables._driver.commit()
    return found


ALL = Search()


def winners(history: History, search: Search = ALL) -> list[tuple[str, str, str | None]]:
    found = history.story(search)[0]
    return [(one.id, one.status, one.winner) for one in found]


# --- the event that took effect ---


@pytest.mark.parametrize("probes", [0, search_module.MOST_PROBES])
def test_a_copy_names_the_event_that_took_effect(
    history: History, monkeypatch: pytest.MonkeyPatch, probes: int
) -> None:
    """For any number of keys, and also where a search finds only the copies."""
    monkeypatch.setattr(search_module, "MOST_PROBES", probes)
    crm, billing = consumer(history), consumer(history, "billing")
    for made, first in ((crm, "a"), (billing, "b")):
        for id_ in (first, first, "c"):
            made.process([event(id_, "call", call=1)])
    crm.process([event("d", "call", call=1, said="no")])
    crm.process([event("e", "call", call=2)])
    history.flush()
    assert winners(history, Search(consumer="crm")) == [
        ("a", "done", None),
        ("a", "duplicate", "a"),
        ("c", "duplicate", "a"),
        ("d", "conflict", "a"),
        ("e", "done", None),
    ]
    assert winners(history, Search(copies="other")) == [
        ("c", "duplicate", "a"),
        ("c", "duplicate", "b"),
    ]
    (chapter,) = told(history.story(Search(copies="other", consumer="crm"))[0])
    assert ", of event a, under another transport id" in chapter.sentences[0]
    (whole, *_) = told(history.story(Search(consumer="crm"))[0])
    assert " as event a on worker w1" in whole.sentences[0]
    assert ", of event a; 1 under the same" in whole.sentences[1]


def test_a_dropped_version_names_the_version_that_was_applied(history: History) -> None:
    crm = consumer(history)
    sent = [agent("a", 1), agent("b", 20), agent("c", 10), agent("b", 20), agent("d", 20, "b")]
    for one in sent:
        crm.process([one])
    history.flush()
    assert winners(history) == [
        ("a", "done", None),
        ("b", "done", None),
        ("c", "stale", "b"),
        ("b", "duplicate", "b"),
        ("d", "duplicate", "b"),
    ]
    (chapter,) = told(history.story(Search(id="c"))[0])
    (sentence,) = chapter.sentences
    assert sentence.endswith(f"older than {NOON + 20}, which was applied; event b has that version")


def test_an_unchanged_state_names_the_version_that_took_effect(
    history: History,
) -> None:
    """The record in the store has the version and the id of the last unchanged event."""
    crm = consumer(history)
    crm.process([agent("a", 1, "on")])
    for number in range(2, 14):
        crm.process([agent(f"same-{number}", number, "on")])
    for last in (agent("same-13", 13, "on"), agent("old", 5, "off")):
        crm.process([last])
    history.flush()
    found = winners(history)[1:]
    assert [status for _, status, _ in found] == ["unchanged"] * 12 + ["duplicate", "stale"]
    assert {winner for _, _, winner in found} == {"a"}
    # Also where the search leaves out the versions between.
    assert winners(history, Search(status="duplicate,stale")) == found[-2:]


def test_a_copy_whose_first_event_is_not_in_the_history_names_no_other_event(
    history: History,
) -> None:
    crm = consumer(history)
    crm.observers[:], observers = [], list(crm.observers)
    crm.process([event("a", "call", call=1), agent("b", 20), event("", "call", call=2)])
    crm.observers[:] = observers
    crm.process([event("a", "call", call=1), event("c", "call", call=1), agent("d", 10)])
    crm.process([event("e", "call", call=2)])
    history.flush()
    assert winners(history) == [
        ("a", "duplicate", "a"),
        ("c", "duplicate", None),
        ("d", "stale", None),
        ("e", "duplicate", None),
    ]
    (chapter, *_) = told(history.story(Search(id="e"))[0])
    assert "of event" not in chapter.sentences[0]


def test_the_last_effect_before_a_copy_is_its_winner(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its record was forgotten, an event runs again."""
    clock = count(NOON)
    monkeypatch.setattr(recorder, "wall_clock", lambda: next(clock))
    crm = consumer(history)
    for first in ("a", "b"):
        crm.process([event(first, "call", call=1)])
        crm.process([event(f"{first}-again", "call", call=1)])
        history.flush()
        (done, *_) = history.find(Search(status="done"))
        crm.admin.forget([done.key])
    found = history.find(Search())
    # The clock of one worker may be somewhat behind, so that its copy comes before all effects.
    early, before = (msgspec.structs.replace(found[1], at=NOON - off) for off in (9_000, 99_000))
    with history._tables() as tables:
        told_ = with_winners([*found, early, before], tables.leads)
    assert [one.winner for one in told_] == [None, "a", None, "b", "a", None]
    chapters = told(history.story(Search())[0])
    assert "of event" not in " ".join(chapters[0].sentences), "each copy is of another event"


def test_a_copy_of_two_versions_with_the_same_order_names_no_winner(history: History) -> None:
    crm = consumer(history)
    for one in (agent("a", 5, "on"), agent("b", 5, "off"), agent("c", 5, "on")):
        crm.process([one])
    history.flush()
    assert winners(history) == [
        ("a", "done", None),
        ("b", "done", None),
        ("c", "duplicate", None),
    ]


def test_a_winner_does_not_contradict_the_comparison_of_the_store(history: History) -> None:
    """Two stores with one name share the history: in the first, another event took effect."""
    crm, other = consumer(history), consumer(history)
    crm.process([event("a", "call", call=1)])
    other.process([event("b", "call", call=1)])
    crm.process([event("b", "call", call=1)])
    history.flush()
    assert winners(history)[-1] == ("b", "duplicate", None)


def test_winners_are_found_by_the_index_of_keys_in_one_query(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        crm = consumer(history)
        for id_ in ("a", "b"):
            crm.process([event(id_, "call", call=number) for number in range(5)])
        history.flush()
        found = history.find(Search(status="duplicate"))
        with history._tables() as tables:
            asked: list[tuple[str, Any]] = []
            rows = tables._driver.rows
            tables._driver.rows = lambda query, values=(): (  # type: ignore[method-assign]
                asked.append((query, values)) or rows(query, values)  # type: ignore[func-returns-value]
            )
            with_winners(found, tables.leads)
            asked = [(query, values) for query, values in asked if "h.reason" in query]
            ((query, values),) = asked
            plan = str(rows(f"EXPLAIN QUERY PLAN {query}", values))
    assert "USING INDEX eventonce_history_key " in plan
    assert "SCAN" not in plan


def test_with_a_secret_the_winner_is_a_digest(uri: str) -> None:
    with History(uri, secrets=SECRETS) as history:
        crm = consumer(history)
        for id_ in ("order-4711", "order-4712"):
            crm.process([event(id_, "call", call=1)])
        history.flush()
        done, copy = history.story(Search())[0]
        assert copy.winner == done.id
        assert done.id.startswith("#")


# --- the subject of a state ---


def test_the_subject_of_a_state_is_kept_and_found(history: History) -> None:
    crm, billing = consumer(history), consumer(history, "billing")
    crm.process([agent("a", 1), agent("b", 2, queue=7), event("c", "call", call="u-1")])
    crm.process([agent("a", 1), agent("d", 3, user="u-2")])
    billing.process([agent("a", 1)])
    history.flush()
    assert [(one.id, one.subject) for one in history.find(Search())] == [
        ("a", "u-1"),
        ("b", "u-1, 7"),
        ("c", ""),
        ("a", "u-1"),
        ("d", "u-2"),
        ("a", "u-1"),
    ]
    found = history.find(Search(subject="u-1"))
    assert [(one.consumer, one.status) for one in found] == [
        ("crm", "done"),
        ("crm", "duplicate"),
        ("billing", "done"),
    ]
    assert [one.id for one in history.find(Search(subject="u-1, 7"))] == ["b"]
    assert history.find(Search(subject="u-1", id="b")) == []
    assert [history.find(Search(subject=no)) for no in ("u-", "7", "u-1,7", "U-1")] == [[]] * 4
    assert len(rows(history)) == 4, "once for each key"


def test_a_search_by_subject_uses_indexes_and_scans_no_table(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        consumer(history).process([agent("a", 1)])
        history.flush()
        with history._tables() as tables:
            asked: list[tuple[str, Any]] = []
            rows = tables._driver.rows
            tables._driver.rows = lambda query, values=(): (  # type: ignore[method-assign]
                asked.append((query, values)) or rows(query, values)  # type: ignore[func-returns-value]
            )
            assert tables.find(Search(subject="u-1"), 10)
            plans = [str(rows(f"EXPLAIN QUERY PLAN {query}", values)) for query, values in asked]
    assert "INDEX eventonce_history_key " in plans[-1]
    assert any("INDEX eventonce_history_subjects_subject " in plan for plan in plans)
    assert not [plan for plan in plans if "SCAN eventonce_history" in plan or "SCAN h" in plan]


def test_the_subject_of_a_key_is_computed_once_while_it_is_cached(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    subject = Ruleset.subject

    def noted(self: Ruleset, event: Event, key: bytes) -> str:
        asked.append(key)
        return subject(self, event, key)

    monkeypatch.setattr(Ruleset, "subject", noted)
    crm = consumer(history)
    for number in range(3):
        crm.process([agent(f"a-{number}", number), agent(f"b-{number}", number, user="u-2")] * 2)
        crm.process([event(f"c-{number}", "call", call=number)])
        history.flush()
    assert len(asked) == len(set(asked)) == 2
    # Not for ever: the write also marks the subject as in use, and memory is bounded.
    monkeypatch.setattr(subjects, "MOST_KEYS", 1)
    crm.process([agent("a-9", 9)])
    history.flush()
    assert len(asked) == 3
    monkeypatch.setattr(subjects, "monotonic", lambda: inf)
    crm.process([agent("a-10", 10)])
    history.flush()
    assert len(asked) == 4


def test_a_key_that_the_rules_no_longer_make_gets_no_subject_from_the_new_rules(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules may be reloaded between a decision and its write."""
    monkeypatch.setattr("eventonce.runtime.background.WRITE_INTERVAL", PATIENCE)
    crm = consumer(history)
    crm.process([agent("a", 1, queue=7)])
    changed = msgspec.structs.replace(AGENT, subject=("detail.queue",))
    crm.use(Ruleset([changed], name="crm"))
    history.flush()
    crm.process([agent("b", 2, queue=7)])
    crm.use(Ruleset([CALL], name="crm"))
    history.flush()
    crm.use(Ruleset([changed], name="crm"))
    crm.process([agent("c", 3, queue=7)])
    history.flush()
    found = {one.id: one.subject for one in history.find(Search())}
    # All decisions of a key have its subject, even decisions from before the subject was known.
    assert found == {"a": "", "b": "7", "c": "7"}


def test_a_decision_is_kept_when_its_subject_cannot_be_computed(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("no rules")

    monkeypatch.setattr(Ruleset, "subject", broken)
    crm = consumer(history)
    crm.process([agent("a", 1)])
    history.flush()
    assert [(one.id, one.subject) for one in history.find(Search())] == [("a", "")]
    assert history.dropped == 0


def test_an_odd_or_long_subject_is_kept_within_the_length_limit_and_found(history: History) -> None:
    long, odd, digest = "x" * 1000, "a\0\u00fc#", "#" + 32 * "0"
    crm = consumer(history)
    crm.process([agent("a", 1, user=long), agent("b", 1, user=odd), agent("c", 1, user=digest)])
    history.flush()
    (found,) = history.find(Search(subject=long))
    assert (found.subject, len(found.subject)) == (id_kept(long), LONGEST_TEXT)
    assert history.find(Search(subject=found.subject)) == [found]
    assert [one.id for one in history.find(Search(subject=odd))] == ["b"]
    assert [one.id for one in history.find(Search(subject=digest))] == ["c"]
    assert history.hidden("subject", "u") == 0, "it looks like a digest, and is none"


def test_with_a_secret_a_subject_is_a_digest_and_found_by_value(uri: str) -> None:
    for number, used in enumerate(((), SECRETS[1:], SECRETS)):
        with History(uri, secrets=used) as writing:
            made = consumer(writing, f"crm-{number}")
            made.process([agent("a", 1, user="4930901820", queue="sales")])
    with History(uri, look=True) as clear:
        kept = [one.subject for one in clear.find(Search())]
        assert clear.hidden("subject", "4930901820, sales") == 2
        assert [one.subject for one in clear.find(Search(subject=kept[2]))] == [kept[2]]
        with pytest.raises(ConfigError, match=r"2 decisions cannot be found by an id"):
            clear.find(Search(subject="4930901820"))
    assert [one.startswith("#") for one in kept] == [False, True, True]
    assert len(set(kept)) == 3
    with History(uri, secrets=SECRETS) as history:
        whole = history.find(Search(subject="4930901820, sales"))
        assert [one.subject for one in whole] == kept
        assert history.hidden("subject", "4930901820, sales") == 0
        assert history.hidden_from(Search(subject="4930901820")) == 0


def test_a_file_with_digests_holds_no_subject(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri, secrets=SECRETS) as history:
        consumer(history).process([agent("a", 1, user="4930901820")])
        history.flush()
        found = b"".join(it.read_bytes() for it in tmp_path.iterdir())
    assert b"4930901820" not in found
    assert subjects.SUBJECTS.encode() in found


def test_subjects_are_dropped_with_their_last_decision(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = NOON
    monkeypatch.setattr(recorder, "wall_clock", lambda: now)
    with History(uri, keep="1d") as history:
        crm = consumer(history)
        crm.process([agent("a", 1), agent("b", 1, user="u-2")])
        history.flush()
        now += 80_000_000
        # A subject is in use for a minute after its write, whatever the clock of the process does.
        monkeypatch.setattr(subjects, "monotonic", lambda: inf)
        crm.process([agent("c", 2)])
        history.flush()
        now += 80_000_000
        assert history.tidy() == 2
        assert [(one.id, one.subject) for one in history.find(Search())] == [("c", "u-1")]
        assert rows(history) == [("u-1",)]


def test_a_subject_is_forgotten_with_the_only_conversation_that_has_it(history: History) -> None:
    crm = consumer(history)
    crm.process([agent("a", 1, conversationId="c-1"), agent("b", 2, conversationId="c-2")])
    crm.process([agent("c", 1, user="u-2", conversationId="c-1")])
    history.flush()
    assert history.forget("c-1") == 2
    assert rows(history) == [("u-1",)]
