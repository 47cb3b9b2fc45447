"""`eventonce forget --conversation`: the data of the conversation is deleted, and a copy still does
not run."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from eventonce import Consumer, Job, Reject
from eventonce.cli.history_options import DASHBOARD_HISTORY
from eventonce.config import load
from eventonce.config.checks import CHECKS
from eventonce.core.ports import StoreAdmin
from eventonce.erasure import OTHER_PLACES, Conversation, not_reached
from eventonce.history import History, Search
from eventonce.history.digests import Digests
from eventonce.letters.sources import StoreLetterSource
from eventonce.stores import open_store
from eventonce.types import Letter
from tests.helpers import Result, Run, audit_of, statuses

GONE = "conv-4711"
STAYS = "conv-4712"
CONFIG = """
store = "sqlite:///store.db"
name = "crm"
audit = "audit.jsonl"
[history]
store = "sqlite:///history.db"
[[rule]]
name = "call"
key = ["detail.call"]
"""


def event(number: int, conversation: str, **detail: Any) -> bytes:
    said = {"call": number, "conversationId": conversation, **detail}
    return msgspec.json.encode({"id": f"id-{number}", "detail-type": "call", "detail": said})


def reject_or_answer(job: Job) -> dict[str, str]:
    """Reject the events whose detail has `fails`, and return a result for the other events."""
    detail = job.event.detail
    if detail.get("fails"):
        raise Reject(f"{detail.get('because', detail['conversationId'])} is no customer")
    return {"said": f"this is {detail['conversationId']}"}


EVENTS = [
    event(1, GONE),
    event(2, GONE, fails=True),
    event(3, STAYS),
    event(4, STAYS, fails=True),
    event(5, STAYS, fails=True, note=f"transferred from {GONE}"),
]


@pytest.fixture
def consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A consumer that has seen two conversations."""
    monkeypatch.chdir(tmp_path)
    Path("eventonce.toml").write_text(CONFIG)
    with load().consumer() as consumer, History("sqlite:///history.db") as history:
        consumer.on()(reject_or_answer)
        consumer.observers.append(history.observer(consumer))
        consumer.process(EVENTS)
        history.flush()
        yield consumer


def bytes_of_all_files(folder: Path) -> bytes:
    return b"".join(it.read_bytes() for it in folder.iterdir() if it.is_file())


def test_the_data_of_a_conversation_is_deleted_and_a_copy_does_not_run(
    run: Run, consumer: Consumer, tmp_path: Path
) -> None:
    assert bytes_of_all_files(tmp_path).count(GONE.encode()) > 0
    dry = run("forget", "--conversation", GONE, "--dry-run", "--json").documents[0]
    assert {part["what"]: part["found"] for part in dry["parts"]} == {
        "dead letters in the store": 1,
        "results": 1,
        "decisions": 2,
        "subjects": 0,
    }
    done = run("forget", "--conversation", GONE, "--yes")
    assert done.code == 0, done.err
    assert "looked again: nothing is left of these" in done.out
    assert all(f"not reached: {it}" in done.out for it in OTHER_PLACES)
    # The copy is a duplicate without a result; the other conversation keeps its result.
    copies = consumer.process([EVENTS[0], EVENTS[2]])
    assert statuses(copies) == ["duplicate", "duplicate"]
    assert [it.result for it in copies] == [None, {"said": f"this is {STAYS}"}]
    assert [it.rule for it in consumer.admin.letters()] == ["call", "call"]
    with History("sqlite:///history.db") as history:
        assert history.find(Search(conversation=GONE)) == []
        assert len(history.find(Search(conversation=STAYS))) == 3


@pytest.mark.parametrize(
    ("detail", "code"),
    [
        ({"conversation": {"id": GONE}}, 1),
        ({"conversationId": GONE.upper()}, 1),
        ({"conversationId": STAYS, "from": GONE}, 0),
        ({"note": f"9{GONE}9"}, 0),
        ({"note": f"so\n{GONE} and\u00fc"}, 1),
        ({"note": f"?id%3D{GONE}"}, 1),
    ],
)
def test_a_dead_letter_is_unclear_only_if_it_may_be_about_the_conversation(
    run: Run, consumer: Consumer, detail: dict[str, Any], code: int
) -> None:
    said = {"call": 8, "conversationId": "", "fails": True, "because": "this", **detail}
    whole = {"id": "id-8", "detail-type": "call", "detail": said}
    consumer.process([msgspec.json.encode(whole)])
    done = run("forget", "--conversation", GONE, "--yes", "--json")
    assert (done.code, done.documents[0]["unclear"]) == (code, code)


def test_an_event_type_with_the_conversation_id_is_reported_and_fails_the_command(
    run: Run, consumer: Consumer
) -> None:
    said = {"call": 8, "conversationId": STAYS}
    whole = {"id": "id-8", "detail-type": f"after.{GONE}", "detail": said}
    consumer.process([msgspec.json.encode(whole)])
    consumer.observers[-1]._background.flush()  # type: ignore[union-attr]
    done = run("forget", "--conversation", GONE, "--yes")
    assert "1 type of events in the history have this id" in done.out
    assert done.code == 1


@pytest.mark.usefixtures("consumer")
def test_the_type_of_a_running_event_with_the_conversation_id_fails_the_command(run: Run) -> None:
    said = {"call": 8, "conversationId": STAYS}
    whole = {"id": "id-8", "detail-type": f"after.{GONE}", "detail": said}
    done: list[Result] = []

    def ask(_: Job) -> None:
        with History("sqlite:///history.db") as history:
            history.observer(other)
            history._tell_if_due()
            done.append(run("forget", "--conversation", GONE, "--yes"))

    other = Consumer("memory:", name="crm", handler=ask)
    other.process([msgspec.json.encode(whole)])
    assert "1 type of events in the history have this id" in done[0].out
    assert done[0].code == 1


@pytest.mark.parametrize(
    ("store", "history", "tables"),
    [
        ("", "", []),
        ("redis://h", "sqlite:///h.db", []),
        ("postgresql://h/d", "", ["records, letters"]),
        (
            "dynamodb://t",
            "postgres://me:hush@h/d",
            ["eventonce_history, eventonce_history_subjects"],
        ),
        (
            "postgresql://h/d",
            "postgresql://h/d",
            ["records, letters", "eventonce_history, eventonce_history_subjects"],
        ),
    ],
)
def test_the_free_pages_of_postgresql_are_listed_as_not_reached(
    store: str, history: str, tables: list[str]
) -> None:
    found = not_reached(store, history)
    assert found[: len(OTHER_PLACES)] == OTHER_PLACES
    more = found[len(OTHER_PLACES) :]
    assert [it.partition("VACUUM FULL ")[2] for it in more] == [
        f"{names} removes them" for names in tables
    ]


def test_a_place_of_dead_letters_that_is_no_sqs_queue_is_listed_as_not_reached(
    run: Run, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast("dict[Any, Any]", CHECKS), ("letters",), str)
    Path("eventonce.toml").write_text(f'letters = "kafka://broker/dead"\n{CONFIG}')
    found = run("forget", "--conversation", GONE, "--yes", "--json").documents[0]
    assert {part["left"] for part in found["parts"]} == {0}
    assert "dead letters in kafka://broker…: only SQS queues are read" in found["not_reached"]


def test_the_files_have_no_bytes_of_the_forgotten_conversation(
    run: Run, consumer: Consumer, tmp_path: Path
) -> None:
    """A dead letter of another conversation mentions this one: it stays, and its id is printed."""
    found = run("forget", "--conversation", GONE, "--yes", "--json").documents[0]
    (mentioned,) = found["mentioned"]
    text = run("forget", "--conversation", GONE, "--yes").out
    assert f"eventonce letters drop {mentioned}" in text
    assert run("letters", "drop", mentioned, "--yes").code == 0
    again = run("forget", "--conversation", GONE, "--yes", "--json").documents[0]
    assert (again["mentioned"], [part["found"] for part in again["parts"]]) == ([], [0, 0, 0, 0])
    assert GONE.encode() not in bytes_of_all_files(tmp_path)
    assert STAYS.encode() in bytes_of_all_files(tmp_path)


def test_the_audit_of_forget_has_no_conversation_id(run: Run, consumer: Consumer) -> None:
    run("forget", "--conversation", GONE, "--yes")
    assert GONE not in Path("audit.jsonl").read_text()
    (said,) = audit_of(Path("audit.jsonl"))
    assert (said["action"], said["ended"]) == ("forget", "finished")
    found = {"dead letters in the store": 1, "results": 1, "decisions": 2, "subjects": 0}
    assert said["counts"] == {**found, "left": 0}


def test_the_audit_of_a_drop_has_no_conversation_id(run: Run, consumer: Consumer) -> None:
    """The audit line of the drop stays when the conversation is forgotten later."""
    assert run("letters", "drop", "--conversation", GONE, "--yes").code == 0
    run("forget", "--conversation", GONE, "--yes")
    assert GONE not in Path("audit.jsonl").read_text()
    dropped, forgot = audit_of(Path("audit.jsonl"))
    assert dropped["selection"].rpartition("sha256:")[2] == forgot["selection"].rpartition(":")[2]


def test_with_secrets_the_audit_has_the_digest_of_the_history(run: Run, consumer: Consumer) -> None:
    """A plain digest of a telephone number can be guessed."""
    secret = "s" * 32
    Path("eventonce.toml").write_text(f"secrets = ['{secret}']\n{CONFIG}")
    digest = Digests([secret.encode()]).of("conversation", GONE)
    assert run("letters", "drop", "--conversation", GONE, "--yes").code == 0
    run("forget", "--conversation", GONE, "--yes")
    # The id may be given as this digest.
    run("forget", "--conversation", digest, "--yes")
    assert [line["selection"] for line in audit_of(Path("audit.jsonl"))] == [
        f"--name=crm '--conversation={digest}'",
        *[f"conversation {digest}"] * 2,
    ]


def test_a_dry_run_and_the_answer_no_change_nothing(
    run: Run, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    before = consumer.admin.stats().letters
    assert run("forget", "--conversation", GONE, "--dry-run").code == 0
    assert run("forget", "--conversation", GONE).code == 1
    assert consumer.admin.stats().letters == before
    assert consumer.process([EVENTS[0]])[0].result == {"said": f"this is {GONE}"}


def test_without_a_history_the_results_are_reported_as_unknown(
    run: Run, consumer: Consumer
) -> None:
    Path("eventonce.toml").write_text(CONFIG.replace("[history]", "[dashboard]").replace(
        'store = "sqlite:///history.db"', ""))  # fmt: skip
    done = run("forget", "--conversation", GONE, "--yes")
    assert done.code == 1
    assert "no proof that nothing is left: the results of events without a decision" in done.out
    assert "not looked for: results, and dead letters of a rule that redacts" in done.out
    assert consumer.process([EVENTS[0]])[0].result is not None
    assert len(list(consumer.admin.letters())) == 2, "those are found by their content"


@pytest.mark.usefixtures("consumer")
@pytest.mark.parametrize(
    ("bounds", "code"),
    [("most = 1000", 0), ("most = 3", 1), ('keep = "9d"', 1), ('keep = "10d"', 0)],
)
def test_forget_fails_only_if_the_history_may_have_dropped_decisions_too_early(
    run: Run, bounds: str, code: int
) -> None:
    """Results are kept for ten days, as records are."""
    file = Path("eventonce.toml")
    file.write_text(file.read_text().replace("[history]", f"[history]\n{bounds}"))
    done = run("forget", "--conversation", GONE, "--yes")
    assert done.code == code
    said = "no proof that nothing is left: the results of events without a decision could not"
    assert (said in done.out) == bool(code)


class KeepsEverything:
    """A store that reports deletions, and deletes nothing."""

    def __init__(self, store: StoreAdmin) -> None:
        self.letters, self.show = store.letters, store.show

    def drop_letters(self, ids: Any) -> int:
        return len(ids)

    def clear_results(self, keys: Any) -> int:
        return len(keys)


def test_data_that_was_not_deleted_is_counted(consumer: Consumer) -> None:
    deaf: Any = KeepsEverything(consumer.admin)
    with History("sqlite:///history.db") as history:
        subject = Conversation(
            GONE, deaf, [lambda: StoreLetterSource(deaf, None, close=False)], history
        )
        found = subject.erase(subject.look())
    assert [(part.found, part.left) for part in found.parts] == [(1, 1), (1, 1), (2, 0), (0, 0)]
    assert found.left == 2


def test_a_file_that_cannot_be_scrubbed_is_reported(run: Run, consumer: Consumer) -> None:
    with closing(sqlite3.connect("history.db")) as other:
        other.execute("CREATE TABLE theirs (a)")
    done = run("forget", "--conversation", GONE, "--yes")
    assert done.code == 1
    assert (
        "bytes of it may still be in the file of the history: it has tables of others" in done.out
    )
    assert "the file of the store" not in done.out


def test_a_redacted_dead_letter_is_found_by_the_history(run: Run, consumer: Consumer) -> None:
    with closing(open_store("sqlite:///store.db")) as store:
        (letter,) = [it for it in store.letters() if it.event == EVENTS[1]]
        redacted = msgspec.json.encode({"detail-type": "call", "detail": {"call": 2}})
        store.drop_letters([letter.id])
        other = Letter("z", "crm", "dead", "why", "call", b"k" * 16, redacted, 1)
        store.put_letters([msgspec.structs.replace(letter, event=redacted), other])
        run("forget", "--conversation", GONE, "--yes")
        assert letter.id not in {it.id for it in store.letters()}
        assert store.letter("z") == other, "nobody knows whose it is"


def test_a_dead_letter_of_a_rule_that_redacts_the_id_is_found_by_the_history(run: Run) -> None:
    """Also after a redrive, which the history has without the id."""
    Path("eventonce.toml").write_text(f'{CONFIG}redact = ["detail.conversationId"]\n')
    with load().consumer() as consumer, History("sqlite:///history.db") as history:
        consumer.on()(reject_or_answer)
        consumer.observers.append(history.observer(consumer))
        consumer.process([event(1, GONE, fails=True), event(2, STAYS, fails=True)])
        assert statuses(consumer.redrive()) == ["dead", "dead"]
        history.flush()
        assert [one.conversation for one in history.find(Search())] == [GONE, STAYS, "", ""]
        done = run("forget", "--conversation", GONE, "--yes", "--json")
        assert done.documents[0]["parts"][0] == {
            "what": "dead letters in the store",
            "found": 1,
            "left": 0,
        }
        (left,) = consumer.letters()
    assert b'"call":2' in left.event


def test_a_dead_letter_of_the_subject_without_a_conversation_is_kept_and_reported(run: Run) -> None:
    """The dead letter may be of this conversation, redacted, or of none."""
    rule = '[[rule]]\nname = "call"\nsubject = ["detail.agent"]\norder = "detail.call"\n'
    Path("eventonce.toml").write_text(CONFIG.partition("[[rule]]")[0] + rule)
    with load().consumer() as consumer, History("sqlite:///history.db") as history:
        consumer.on()(reject_or_answer)
        consumer.observers.append(history.observer(consumer))
        for number, whose in ((1, GONE), (2, "")):
            consumer.process([event(number, whose, fails=bool(not whose), agent="a")])
        history.flush()
        (letter,) = consumer.letters()
        done = run("forget", "--conversation", GONE, "--yes", "--json").documents[0]
        assert [part["left"] for part in done["parts"]] == [0, 0, 0, 0]
        assert done["mentioned"] == [letter.id]
        assert list(consumer.letters()) == [letter]


@pytest.mark.parametrize(
    ("secrets", "named", "found"),
    [
        ("", "{}", 1),
        ("", "{}, 7", 1),
        ("", "7, {}", 1),
        ("", "9{}", 0),
        ("a secret of enough length", "{}", 1),
        # A digest of several parts tells no more than the key does.
        ("a secret of enough length", "{}, 7", 0),
    ],
)
def test_a_subject_of_another_conversation_is_erased_only_if_it_has_this_id(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secrets: str, named: str, found: int
) -> None:
    """Events of another conversation, or of none, may be about a state of this one."""
    monkeypatch.chdir(tmp_path)
    rule = '[[rule]]\nname = "call"\nsubject = ["detail.about"]\norder = "detail.call"\n'
    head = f'secrets = ["{secrets}"]\n' if secrets else ""
    Path("eventonce.toml").write_text(head + CONFIG.partition("[[rule]]")[0] + rule)
    with load().consumer() as consumer:
        consumer.on()(reject_or_answer)
        given = [secrets.encode()] if secrets else []
        with History("sqlite:///history.db", secrets=given) as history:
            consumer.observers.append(history.observer(consumer))
            for number, whose in ((1, GONE), (2, STAYS)):
                consumer.process([event(number, whose, about="agent-1")])
            consumer.process([event(3, STAYS, about=named.format(GONE))])
    dry = run("forget", "--conversation", GONE, "--dry-run", "--json").documents[0]
    assert dry["parts"][-1] == {"what": "subjects", "found": found, "left": None}
    done = run("forget", "--conversation", GONE, "--yes", "--json")
    assert done.code == 0
    assert done.documents[0]["parts"][-1] == {"what": "subjects", "found": found, "left": 0}
    kept = Path("history.db").read_bytes()
    assert (GONE.encode() in kept) == (named == "9{}")
    # The decisions of the other conversation stay, and have all other subjects.
    with History("sqlite:///history.db", secrets=given) as history:
        assert len(history.find(Search(conversation=STAYS))) == 2
        assert len(history.find(Search(subject="agent-1"))) == 1


def test_a_subject_that_was_not_deleted_is_reported_and_fails_the_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rule = '[[rule]]\nname = "call"\nsubject = ["detail.about"]\norder = "detail.call"\n'
    Path("eventonce.toml").write_text(CONFIG.partition("[[rule]]")[0] + rule)
    with load().consumer() as consumer, History("sqlite:///history.db") as history:
        consumer.on()(reject_or_answer)
        consumer.observers.append(history.observer(consumer))
        consumer.process([event(3, STAYS, about=GONE)])
    monkeypatch.setattr(History, "drop_subjects", lambda *_: None)
    done = run("forget", "--conversation", GONE, "--yes")
    assert (done.code, "1 left: run the same command again" in done.out) == (1, True)


def test_sealed_dead_letters_are_opened_and_dead_letters_without_a_key_are_reported(
    run: Run,
) -> None:
    key, file = "11" * 32, Path("eventonce.toml")
    sealed = f'{CONFIG}[privacy]\nsealing_keys = ["{key}"]\n'.replace("[history]", "[dashboard]")
    sealed = sealed.replace('store = "sqlite:///history.db"', "")
    file.write_text(sealed)
    with load().consumer() as consumer:
        consumer.on()(reject_or_answer)
        consumer.process(EVENTS)
        assert GONE.encode() not in Path("store.db-wal").read_bytes()
        file.write_text(sealed.replace(key, "22" * 32))
        without = run("forget", "--conversation", GONE, "--yes")
        assert "not looked for: 3 dead letters in the store that no key" in without.out
        assert without.code == 1, "nobody knows whose they are"
        assert consumer.admin.stats().letters == 3
        file.write_text(f"{sealed}[override]\nkeep_result = 0\n")
        done = run("forget", "--conversation", GONE, "--yes")
        assert done.code == 0, "there are no results to look for"
        assert consumer.admin.stats().letters == 2


def test_a_conversation_that_is_a_digest_in_the_history_is_found_by_its_id(run: Run) -> None:
    """Also after the secret was changed."""
    old, new = "an old secret of enough length", "a new secret of enough length"
    file = Path("eventonce.toml")
    file.write_text(f'secrets = ["{old}"]\n{CONFIG}')
    with load().consumer() as consumer:
        consumer.on()(reject_or_answer)
        with History("sqlite:///history.db", secrets=[old.encode()]) as history:
            consumer.observers.append(history.observer(consumer))
            consumer.process(EVENTS)
            history.flush()
            assert GONE not in {one.conversation for one in history.find(Search())}
        file.write_text(f'secrets = ["{new}", "{old}"]\n{CONFIG}')
        found = run("forget", "--conversation", GONE, "--yes", "--json").documents[0]
        assert [(part["found"], part["left"]) for part in found["parts"]] == [
            (1, 0),
            (1, 0),
            (2, 0),
            (0, 0),
        ]
        assert consumer.process([EVENTS[0]])[0].result is None
    with History("sqlite:///history.db", secrets=[old.encode()]) as history:
        assert len(history.find(Search())) == 3
        digest = history.find(Search(conversation=STAYS))[0].conversation
    # The digest that the history shows works too: its decisions are not deleted without the rest.
    found = run("forget", "--conversation", digest, "--yes", "--json").documents[0]
    left = [(part["found"], part["left"]) for part in found["parts"]]
    assert left == [(2, 0), (1, 0), (3, 0), (0, 0)]
    assert any("it is a digest" in said for said in found["unknown"])


RIGHT, WRONG = "the secret of this history", "another secret of enough length"


@pytest.mark.parametrize("secrets", [f'secrets = ["{WRONG}"]\n', ""], ids=["wrong", "none"])
def test_decisions_under_an_unknown_secret_fail_the_command(run: Run, secrets: str) -> None:
    """The secret was mistyped, or it was rotated too early."""
    file = Path("eventonce.toml")
    file.write_text(f'secrets = ["{RIGHT}"]\n{CONFIG}')
    with load().consumer() as consumer:
        consumer.on()(reject_or_answer)
        with History("sqlite:///history.db", secrets=[RIGHT.encode()]) as history:
            consumer.observers.append(history.observer(consumer))
            consumer.process(EVENTS)
        file.write_text(f"{secrets}{CONFIG}")
        dry = run("forget", "--conversation", GONE, "--dry-run", "--json")
        assert (dry.code, dry.documents[0]["hidden"]) == (1, 5)
        done = run("forget", "--conversation", GONE, "--yes")
        assert done.code == 1
        assert "no proof that nothing is left: 5 decisions could not be looked into" in done.out
        assert "digests under a secret that the file does not name: 5, the results" in done.out
        (said,) = audit_of(Path("audit.jsonl"))
        assert said["ended"] == "not finished: 5 decisions could not be looked into"
        assert consumer.process([EVENTS[0]])[0].result is not None
        for option in (("--conversation", GONE), ("--event", "id-1")):
            searched = run("history", *option)
            assert searched.code == 2
            assert "5 decisions cannot be found by an id" in searched.err
        file.write_text(f'secrets = ["{WRONG}", "{RIGHT}"]\n{CONFIG}')
        done = run("forget", "--conversation", GONE, "--yes", "--json")
        assert done.code == 0
        # The dead letter was already found by its content, which needs no secret.
        assert [(it["found"], it["left"]) for it in done.documents[0]["parts"]] == [
            (0, 0),
            (1, 0),
            (2, 0),
            (0, 0),
        ]
        assert consumer.process([EVENTS[0]])[0].result is None
        assert audit_of(Path("audit.jsonl"))[-1]["ended"] == "finished"


def test_history_reports_the_decisions_that_another_secret_hides(run: Run) -> None:
    Path("eventonce.toml").write_text(f'secrets = ["{WRONG}"]\n{CONFIG}')
    with load().consumer() as consumer:
        consumer.on()(reject_or_answer)
        for number, secret in enumerate((RIGHT, WRONG)):
            with History("sqlite:///history.db", secrets=[secret.encode()]) as history:
                consumer.observers[:] = [history.observer(consumer)]
                consumer.process([event(number, GONE)])
    found = run("history", "--conversation", GONE)
    assert (found.code, found.out.count("key ")) == (0, 1)
    assert "the history may have more decisions" in found.err
    assert "1 decision cannot be found by an id" in found.err


def test_a_group_id_made_with_another_secret_is_explained(run: Run, consumer: Consumer) -> None:
    (group, *_) = run("letters", "groups", "--json").documents
    assert run("letters", "list", "--group", group["id"], "--json").documents
    Path("eventonce.toml").write_text(f'secrets = ["{WRONG}"]\n{CONFIG}')
    found = run("letters", "list", "--group", group["id"])
    assert found.out.startswith("no dead letters of this group; the id of a group is made with")


def test_a_missing_history_is_reported_and_fails_the_command(run: Run, consumer: Consumer) -> None:
    """A relative path may lead to another folder, which has no history."""
    Path("eventonce.toml").write_text(CONFIG.replace("history.db", "elsewhere.db"))
    done = run("forget", "--conversation", GONE, "--yes")
    assert done.code == 1
    assert "no proof that nothing is left: the history could not be looked into" in done.out
    assert "there is no history sqlite:///elsewhere.db" in done.out


def test_an_id_within_another_text_is_reported_even_if_json_escapes_it(
    run: Run, consumer: Consumer
) -> None:
    name, said = "fall-müller", json.dumps("from fall-müller")
    text = b'{"id":"6","detail-type":"call","detail":{"call":6,"fails":true,"conversationId":"c"'
    consumer.process([text + b',"note":' + said.encode() + b"}}"])
    consumer.process([event(7, "", fails=True, because=name)])
    consumer.observers[-1]._background.flush()  # type: ignore[union-attr]
    found = run("forget", "--conversation", name, "--yes", "--json").documents[0]
    assert [part["found"] for part in found["parts"]] == [0, 0, 0, 0]
    assert len(found["mentioned"]) == 2
    assert found["reasons"] == 1
    done = run("forget", "--conversation", name, "--yes")
    assert "nothing was found under this id" in done.out
    assert "1 decision of another conversation, or of none" in done.out
    assert "nothing is left of these" not in done.out
    assert "no proof that nothing is left: 1 of these name no other" in done.out
    assert done.code == 1


def test_results_from_before_the_history_began_are_reported_as_not_looked_for(
    run: Run, consumer: Consumer
) -> None:
    with History("sqlite:///history.db") as history:
        begin = history.begin()
    found = run("forget", "--conversation", "none", "--dry-run").out
    assert begin
    assert "not looked for: results of events that the history does not have: those before" in found


def test_the_history_of_a_dashboard_is_searched(run: Run, consumer: Consumer) -> None:
    """A worker with `--dashboard` keeps a history that no file names."""
    Path("eventonce.toml").write_text(CONFIG.replace("[history]", "[dashboard]").replace(
        'store = "sqlite:///history.db"', ""))  # fmt: skip
    with History(DASHBOARD_HISTORY) as history:
        consumer.observers.append(history.observer(consumer))
        consumer.process([event(8, GONE)])
    done = run("forget", "--conversation", GONE, "--yes", "--json").documents[0]
    assert [part["found"] for part in done["parts"]] == [1, 1, 1, 0]


@pytest.mark.parametrize("name", ["x" * 201, "x" * 5_000, "é?" * 250])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_long_id_is_forgotten(run: Run, consumer: Consumer, name: str, ascii_only: bool) -> None:
    """With its characters escaped in JSON, and without."""
    for number, whose in enumerate((name, f"{name}."), start=8):
        said = {"call": number, "conversationId": whose, "fails": True, "because": "it"}
        whole = {"id": f"id-{number}", "detail-type": "call", "detail": said}
        consumer.process([json.dumps(whole, ensure_ascii=ascii_only).encode()])
    consumer.observers[-1]._background.flush()  # type: ignore[union-attr]
    (listed,) = run("letters", "list", "--conversation", name, "--json").documents
    done = run("forget", "--conversation", name, "--yes", "--json")
    assert done.code == 0
    assert [(part["found"], part["left"]) for part in done.documents[0]["parts"]] == [
        (1, 0),
        (0, 0),
        (1, 0),
        (0, 0),
    ]
    assert listed["id"] not in {it.id for it in consumer.letters()}
    assert len(run("letters", "list", "--conversation", f"{name}.", "--json").documents) == 1


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("00ff", "--conversation", GONE),
        ("--conversation", ""),
        ("--conversation", "\udcff"),
        ("00ff", "--dry-run"),
    ],
)
def test_missing_conflicting_or_invalid_arguments_are_refused(
    run: Run, words: tuple[str, ...]
) -> None:
    assert run("forget", *words, "--yes").code == 2
