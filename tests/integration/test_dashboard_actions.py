"""Actions of the dashboard, requested over HTTP: bounded, audited, and of the right consumer."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from eventonce import Consumer, Job
from eventonce.aws.sqs import Queue
from eventonce.config import Config, DashboardTable
from eventonce.dashboard import Resources, actions, dashboard, server
from eventonce.dashboard.access import Person
from eventonce.dashboard.actions import Action
from eventonce.dashboard.letter_query import LetterQuery
from eventonce.dashboard.pages import letter_actions
from eventonce.errors import StoreUnavailable
from eventonce.history import History, Search
from eventonce.history.digests import Digests
from eventonce.letters.reasons import grouping
from eventonce.letters.runners import Runners
from eventonce.privacy import SealedStore, Sealer
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from tests.helpers import PATIENCE, WatchedStore, audit_of, call, reject, ruled, until
from tests.unit.test_letters_selection import letter

SETTINGS = DashboardTable(operators={"ann": "ann-password"}, viewers={"vic": "vic-password"})
AUTH = ("ann", "ann-password")
SAME = {"sec-fetch-site": "same-origin"}


class Asking:
    """A client of a dashboard, with the name and the password of an operator."""

    def __init__(self, url: str, app: Any) -> None:
        self.app = app
        self.http = httpx.Client(base_url=url, auth=AUTH, headers=SAME, timeout=PATIENCE)

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def post(self, path: str, **fields: str) -> httpx.Response:
        return self.http.post(path, data=fields)

    def done(self, path: str, **fields: str) -> str:
        """Begin an action, wait for its end, and return its counts and its state."""
        begun = self.post(path, **fields)
        assert begun.status_code == 303, begun.text
        action = self.app.state.context.actions.find(begun.headers["location"].rpartition("/")[2])
        until(lambda: action.ended)
        return f"{dict(action.progress.counts)} {action.state}"


@contextmanager
def asking(resources: Resources) -> Iterator[Asking]:
    app = dashboard(resources, SETTINGS)
    with server.listen("0") as listening, server.serving(app, listening):
        asked = Asking(server.url_of(listening), app)
        with asked.http:
            yield asked
    resources.close()


def store_of(*letters: Any) -> MemoryStore:
    store = MemoryStore()
    store.put_letters(letters)
    return store


LETTERS = [letter(number) for number in range(30)]


def running(store: Any, handler: Any, name: str = "crm") -> Consumer:
    return Consumer(store, name=name, rules=ruled(), handler=handler)


def audit(folder: Path) -> list[dict[str, Any]]:
    return audit_of(folder / "audit.jsonl")


def test_the_consumer_of_the_process_redrives_its_own_dead_letters_alone(tmp_path: Path) -> None:
    ran: list[str] = []
    store = store_of(*LETTERS, letter(99, consumer="billing"))

    def take(job: Job) -> None:
        ran.append(job.event.id)

    with running(store, take) as consumer:
        resources = Resources(lambda: store, name="crm", consumer=consumer)
        with asking(resources) as asked:
            refused = asked.get("/letters/redrive?consumer=billing")
            assert refused.status_code == 409
            assert (
                "cannot run the dead letters of billing: redrive them where billing runs"
                in refused.text
            )
            assert asked.post("/letters/redrive", consumer="billing", limit="9").status_code == 409
            assert "eventonce letters redrive --dry-run" in asked.get("/letters/redrive").text
            assert (
                asked.done("/letters/redrive", consumer="", limit="99") == "{'done': 30} finished"
            )
            (action,) = asked.app.state.context.actions.latest()
            page = asked.get(f"/actions/{action.id}").text
            assert f"eventonce audit {action.id}" in page
            assert "--name=crm --limit=99" in page
    assert len(set(ran)) == 30
    assert [one.consumer for one in store.letters()] == ["billing"]


def test_the_events_of_a_redrive_beside_a_worker_have_the_channel_redrive(tmp_path: Path) -> None:
    """The events of a redrive did not come from the queue of the worker."""
    store, uri = store_of(*LETTERS[:3]), f"sqlite:///{tmp_path}/history.db"
    with running(store, lambda _: None) as consumer, History(uri) as history:
        consumer.observers.append(history.observer(consumer, "sqs:calls"))
        resources = Resources(lambda: store, name="crm", history=uri, consumer=consumer)
        with asking(resources) as asked:
            assert asked.done("/letters/redrive", limit="9") == "{'done': 3} finished"
        consumer.process([call(1_000)])
        history.close()
        channels = [one.channel for one in history.find(Search())]
    assert channels == ["redrive", "redrive", "redrive", "sqs:calls"]


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/letters/redrive", {}, 400),
        ("/letters/redrive", {"limit": "0"}, 400),
        ("/letters/redrive", {"limit": "-1"}, 400),
        ("/letters/redrive", {"limit": "²"}, 400),
        ("/letters/redrive", {"limit": "1" * 10}, 400),
        ("/letters/redrive", {"limit": "1", "since": "yesterday"}, 400),
        ("/letters/redrive", {"limit": "1", "from": "sqs://other"}, 400),
        ("/letters/redrive", {"limit": "1", "reason": "x" * 70_000}, 413),
        ("/letters/burn", {"limit": "1"}, 404),
        ("/actions/nobody/stop", {}, 404),
    ],
    ids=str,
)
def test_a_form_with_an_impossible_value_is_refused(
    path: str, fields: dict[str, str], status: int
) -> None:
    store = store_of(*LETTERS)
    with (
        running(store, lambda _: None) as consumer,
        asking(Resources(lambda: store, name="crm", consumer=consumer)) as asked,
    ):
        assert asked.post(path, **fields).status_code == status
    assert len(list(store.letters())) == 30


def test_a_viewer_cannot_search_for_a_part_of_a_reason(tmp_path: Path) -> None:
    """Searches for one digit after the other would reveal a number."""
    history = f"sqlite:///{tmp_path}/history.db"
    History(history).close()
    store = store_of(letter(1, "no customer for +49 170 5550"))
    with asking(Resources(lambda: store, history=history)) as asked:
        for path in ("/letters", "/letters/one?id=0001-id", "/search"):
            found = asked.get(f"{path}{'&' if '?' in path else '?'}reason=%2B49")
            assert found.status_code == 200
            asked.http.auth = httpx.BasicAuth("vic", "vic-password")
            shown = asked.get(path)
            assert shown.status_code in (200, 404)
            assert 'name="reason"' not in shown.text, "no field that would be refused is offered"
            refused = asked.get(f"{path}{'&' if '?' in path else '?'}reason=%2B49")
            assert (refused.status_code, "not search in them" in refused.text) == (403, True)
            asked.http.auth = httpx.BasicAuth(*AUTH)


def test_the_dead_letters_of_all_consumers_have_a_command_for_all_consumers() -> None:
    other = letter(99, consumer="billing")
    store = store_of(*LETTERS, other)
    with asking(Resources(lambda: store, name="crm")) as asked:
        for path in ("/letters", "/letters/drop"):
            assert "--name=crm" in asked.get(f"{path}?consumer=crm").text
            shown = asked.get(f"{path}?consumer=").text
            assert "31\u00a0dead letters" in shown
            assert "--all-consumers" in shown
        one = asked.get(f"/letters/one?id={other.id}").text
        (group,) = re.findall('href="(/letters[?][^"]*group=[^"]*)"', one)
        assert "1\u00a0dead letter<" in asked.get(group.replace("&amp;", "&")).text


def test_a_link_to_a_group_has_the_id_that_the_secret_gives() -> None:
    secrets = [b"the secret of a test"]
    store = store_of(*LETTERS, letter(99, "no customer for 17"))
    with asking(Resources(lambda: store, name="crm", secrets=secrets)) as asked:
        for path in (f"/letters/one?id={letter(99).id}", "/letters"):
            links = re.findall('href="(/letters[?][^"]*group=([^"&]*)[^"]*)"', asked.get(path).text)
            (link,) = [it for it, group in links if group == grouping(secrets)("no customer for 3")]
            assert "1\u00a0dead letter<" in asked.get(link.replace("&amp;", "&")).text


def test_the_audit_has_the_digest_of_a_conversation_that_the_secret_gives(tmp_path: Path) -> None:
    secrets = [b"the secret of a test"]
    store = store_of(*LETTERS)
    with running(store, reject) as consumer:
        file = str(tmp_path / "audit.jsonl")
        resources = Resources(
            lambda: store, name="crm", consumer=consumer, audit=file, secrets=secrets
        )
        with asking(resources) as asked:
            for path in ("/letters/redrive", "/letters/drop"):
                # An empty name means all consumers, which a redrive narrows to its own consumer.
                asked.done(path, conversation="+49 170 5550123", consumer="", limit="9")
    digest = Digests(secrets).of("conversation", "+49 170 5550123")
    assert [digest in line["selection"] for line in audit(tmp_path)] == [True, True]
    assert "5550123" not in (tmp_path / "audit.jsonl").read_text()


def test_a_viewer_reads_no_number_that_is_the_name_of_a_field() -> None:
    told = call(1, agents={"+49 170 5550123": "x", "bob@crm.example": {"queue_2": 1, "Bob Lee": 2}})
    store = store_of(replace(letter(1), event=told))
    with asking(Resources(lambda: store, name="crm")) as asked:
        asked.http.auth = httpx.BasicAuth("vic", "vic-password")
        shown = asked.get(f"/letters/one?id={letter(1).id}").text
    assert "queue_2" in shown
    assert not re.findall("5550123|bob@|Bob Lee", shown)


def test_a_dead_letter_that_came_after_the_dry_run_is_not_dropped() -> None:
    store = store_of(*LETTERS)
    with (
        running(store, lambda _: None) as consumer,
        asking(Resources(lambda: store, name="crm", consumer=consumer)) as asked,
    ):
        page = asked.get("/letters/drop?rule=call&since=9000d").text
        since, moment = (
            page.partition(f'name="{name}" value="')[2].partition('"')[0]
            for name in ("since", "until")
        )
        assert since < moment
        assert since.endswith("Z"), "so long ago is another moment with every second"
        assert moment.endswith("Z")
        store.put_letters([replace(LETTERS[0], id="late", at=4_000_000_000_000)])
        ended = asked.done("/letters/drop", rule="call", until=moment, limit="99")
        assert ended == "{'dropped': 30} finished"
    assert [one.id for one in store.letters()] == ["late"]


def test_an_action_links_to_the_dead_letters_of_its_filter() -> None:
    """Also to those that came later: neither the id of one nor the end of the time counts."""
    store = store_of(*LETTERS)
    with asking(Resources(lambda: store, name="crm")) as asked:
        one = {"id": LETTERS[3].id, "rule": "call", "until": "9999-01-01"}
        begun = asked.post("/letters/drop", limit="1", **one)
        page = asked.get(begun.headers["location"]).text
    links = re.findall('<a href="(/letters[^"]*)">Dead letters</a>', page)
    assert links[-1] == "/letters?rule=call&amp;consumer=crm"


def test_the_filter_keeps_the_group_and_the_place() -> None:
    with asking(Resources(lambda: store_of(*LETTERS), name="crm")) as asked:
        page = asked.get("/letters?group=0a1b&from=store&rule=call").text
    hidden = re.findall('<input type="hidden" name="([a-z]+)" value="([^"]*)"', page)
    assert hidden == [("group", "0a1b"), ("from", "store")]
    assert "<details open>" in page, "the rule is a field that is folded otherwise"


def test_a_form_that_is_sent_twice_begins_one_action() -> None:
    """A double click must not drop twice as many as the bound allows."""
    store = store_of(*LETTERS)
    with asking(Resources(lambda: store, name="crm")) as asked:
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.get("/letters/drop").text))
        sent = fields | {"limit": "5"}
        assert asked.done("/letters/drop", **sent) == "{'dropped': 5} finished"
        assert asked.done("/letters/drop", **sent) == "{'dropped': 5} finished"
        assert len(list(store.letters())) == 25
        (first,) = asked.app.state.context.actions.latest()
        again = asked.get("/letters/drop").text
        assert first.id not in again, "another look is another action"
        assert asked.post("/letters/drop", limit="5", action="x").status_code == 400


def test_a_dry_run_that_reaches_its_limit_says_or_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = store_of(*LETTERS)
    with asking(Resources(lambda: store, name="crm")) as asked:
        assert "or more" not in asked.get("/letters/drop").text
        monkeypatch.setattr(letter_actions, "MOST_READ", 20)
        assert "<b>20\N{NO-BREAK SPACE}dead letters</b> or more" in asked.get("/letters/drop").text


def test_sealed_dead_letters_are_never_reported_as_absent() -> None:
    """Without the key, no filter can be compared with sealed dead letters."""
    store = store_of(*LETTERS[:2])
    SealedStore(store, Sealer([base64.b64encode(bytes(32)).decode()])).put_letters(LETTERS[2:5])
    with asking(Resources(lambda: SealedStore(store, Sealer([])), name="crm")) as asked:
        for path in ("/letters", "/letters/drop", "/letters/export"):
            found = asked.get(f"{path}?reason=nobody").text.replace("\N{NO-BREAK SPACE}", " ")
            assert "<b>0 dead letters</b>" in found
            assert "3 dead letters more could not be opened, and were not compared with" in found
            assert "There are none" not in found
            assert "not compared with" not in asked.get(path).text
        assert "3 of them cannot be opened here, and are left out" in asked.get(path).text
        assert asked.done(path, limit="9") == "{'exported': 2, 'sealed': 3} finished"


def test_a_failed_action_is_shown_as_failed_and_has_its_audit_line(tmp_path: Path) -> None:
    calls = iter(range(10))

    def look(verb: str, _: Any) -> None:
        if verb == "drop_letters" and next(calls):
            raise StoreUnavailable("the store is away")

    store = WatchedStore(look)
    store.put_letters(LETTERS)
    with running(store, lambda _: None) as consumer:
        file = str(tmp_path / "audit.jsonl")
        resources = Resources(lambda: store, name="crm", consumer=consumer, audit=file)
        with asking(resources) as asked:
            ended = asked.done("/letters/drop", reason="customer", limit="99")
            assert ended == "{'dropped': 20} failed"
            (action,) = asked.app.state.context.actions.latest()
            shown = asked.get(f"/actions/{action.id}").text
            assert "the store is away" in shown
            assert "does not go on by itself" in shown
            assert "--reason=customer" in shown
            assert "20\u00a0dead letters of 99 at most" in shown
            asked.http.auth = httpx.BasicAuth("vic", "vic-password")
            for path in (f"/actions/{action.id}", "/actions"):
                seen = asked.get(path)
                assert (seen.status_code, "customer" in seen.text) == (200, False)
    (line,) = audit(tmp_path)
    assert (line["who"], line["counts"]) == ("ann", {"dropped": 20})
    assert line["ended"] == "the store is away"


def test_the_page_of_an_action_links_to_its_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "audit.jsonl")
    with asking(Resources(lambda: store_of(*LETTERS), name="crm", audit=file)) as asked:
        asked.done("/letters/drop", reason="customer", until="9999-01-01", limit="1")
        (action,) = asked.app.state.context.actions.latest()
        links = 'href="(/letters[^"]*)">Dead letters</a></p>'
        for auth, link in (
            (AUTH, "/letters?reason=customer&amp;consumer=crm"),
            (("vic", "vic-password"), "/letters"),
        ):
            asked.http.auth = httpx.BasicAuth(*auth)
            assert re.findall(links, asked.get(f"/actions/{action.id}").text) == [link]
        unknown = asked.get("/actions/0123456789abcdef")
        assert (unknown.status_code, f"has all of them: {file}" in unknown.text) == (404, True)
        asked.http.auth = httpx.BasicAuth(*AUTH)
        monkeypatch.setattr(actions, "MOST_ACTIONS", 0)
        refused = asked.post("/letters/drop", limit="1")
        assert (refused.status_code, 'href="/actions"' in refused.text) == (409, True)


def test_no_action_begins_if_its_audit_cannot_be_written(tmp_path: Path) -> None:
    store = store_of(*LETTERS)
    with running(store, lambda _: None) as consumer:
        resources = Resources(lambda: store, name="crm", consumer=consumer, audit=str(tmp_path))
        with asking(resources) as asked:
            for kind in ("redrive", "drop", "export"):
                refused = asked.post(f"/letters/{kind}", limit="99")
                assert refused.status_code == 409
                assert "cannot be written" in refused.text
    assert len(list(store.letters())) == 30


def test_the_end_of_the_server_stops_an_action_after_its_batch() -> None:
    begun, known = threading.Event(), threading.Event()
    found: list[Action] = []

    def take(_: Job) -> None:
        begun.set()
        assert known.wait(PATIENCE)
        assert found[0].progress.stop.wait(PATIENCE)

    store = store_of(*LETTERS)
    with running(store, take) as consumer:
        with asking(Resources(lambda: store, name="crm", consumer=consumer)) as asked:
            asked.post("/letters/redrive", limit="99")
            assert begun.wait(PATIENCE)
            found += asked.app.state.context.actions.latest()
            known.set()
        assert found[0].state == "stopped"
        assert dict(found[0].progress.counts) == {"done": 20}
    assert len(list(store.letters())) == 10


def test_a_batch_that_outlasts_the_server_is_in_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "CLOSE_WAIT", 0.01)
    begun, go_on = threading.Event(), threading.Event()

    def take(_: Job) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    store = store_of(*LETTERS)
    with running(store, take) as consumer:
        written = str(tmp_path / "audit.jsonl")
        resources = Resources(lambda: store, name="crm", consumer=consumer, audit=written)
        with asking(resources) as asked:
            asked.post("/letters/redrive", limit="99")
            assert begun.wait(PATIENCE)
            (action,) = asked.app.state.context.actions.latest()
        (line,) = audit(tmp_path)
        assert (line["who"], line["action"], line["ended"]) == ("ann", "redrive", actions.CUT_SHORT)
        go_on.set()
        until(lambda: action.ended)
        assert audit(tmp_path) == [line], "an action ends once, also if it ends after all"


def test_an_action_without_a_thread_has_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    resources = Resources(lambda: store_of(*LETTERS), name="crm")
    made, chosen = actions.Actions(resources), LetterQuery({}, resources)
    drop = partial(made.start, "drop", Person("ann", "operator", sees_values=True))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        for _ in range(actions.MOST_ACTIONS):
            with pytest.raises(RuntimeError):
                drop(chosen, 9)
    assert made.latest() == []
    action = drop(chosen, 9)
    until(lambda: action.ended)
    assert action.state == "finished"


def test_dead_letters_of_a_queue_are_read_when_asked_and_redriven(
    endpoint: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.letters.sources.RECEIVE_WAIT", 0)
    uri = f"sqs://q{abs(hash(request.node.nodeid))}?endpoint={endpoint}"
    queue = Queue.from_uri(uri)
    queue.client.create_queue(QueueName=uri[6:].partition("?")[0])
    ran: list[str] = []

    def refuse(job: Job) -> None:
        raise ValueError(job.event.id)

    rules = ruled(attempts=1)
    with Consumer("memory:", name="crm", rules=rules, handler=refuse, letters=uri) as consumer:
        consumer.process([call(number) for number in range(25)])
    config = Config(store="memory:", name="crm", presets=[], rule=(rules,))
    store = MemoryStore()
    with Runners(config, lambda: store, lambda job: ran.append(job.event.id)) as runners:
        resources = Resources(lambda: store, name="crm", runners=runners, letters=uri)
        with asking(resources) as asked:
            first = asked.get("/letters").text
            assert "counts as a receive" in first
            assert 'id="count"' not in first, "nothing was received"
            assert "25\u00a0dead letters" in asked.get("/letters?from=queue").text
            in_store = asked.get("/letters?from=store").text
            assert "0\u00a0dead letters" in in_store
            # Without this option the command would read the queue.
            assert "eventonce letters groups --from=store --name=crm<" in in_store
            assert "run again" in asked.get("/letters/redrive?from=queue").text
            assert not ran
            asked.http.auth = httpx.BasicAuth("vic", "vic-password")
            assert asked.get("/letters?from=queue").status_code == 403, "a receive changes it"
            asked.http.auth = httpx.BasicAuth(*AUTH)
            ended = asked.done("/letters/redrive", limit="99", **{"from": "queue"})
            assert ended == "{'done': 25} finished"
            assert "0\u00a0dead letters" in asked.get("/letters?from=queue").text
    assert len(set(ran)) == 25
    queue.close()


HELD = """
import time
from eventonce.dashboard.actions import Action
made, actions = Action.__init__, []
def noted(self, *args, **more):
    made(self, *args, **more)
    actions.append(self)
Action.__init__ = noted
def take(job):
    open("ran", "a").write("x")
    while not actions[0].progress.stop.is_set():
        time.sleep(0.01)
"""
"""A handler that waits until its action is to stop."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_command_redrives_with_its_handler_and_a_signal_stops_it_after_its_batch(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A command that is killed in a batch leaves only the audit line of its beginning."""
    store = SQLiteStore(tmp_path / "store.db")
    store.put_letters([letter(number) for number in range(100)])
    store.close()
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "eventonce.toml").write_text(
        'store = "sqlite:///store.db"\nname = "crm"\naudit = "audit.jsonl"\n'
        '[[rule]]\nname = "call"\nkey = ["detail.call"]\n'
    )
    words = ("dashboard", "--listen", "0", "--handler", "held:take")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, "-m", "eventonce", *words],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        try:
            assert command.stderr is not None
            link = command.stderr.readline().split()[-1]
            with httpx.Client(headers=SAME, timeout=PATIENCE) as http:
                http.get(link)
                url = link.partition("?")[0]
                begun = http.post(f"{url}letters/redrive", data={"limit": "100"})
                assert begun.status_code == 303
                until((tmp_path / "ran").exists)
            command.send_signal(number)
            _, said = command.communicate(timeout=PATIENCE)
        finally:
            command.kill()
    if number == signal.SIGKILL:
        (line,) = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
        assert (line["action"], line["ended"]) == ("redrive", "begun")
        assert begun.headers["location"] == f"/actions/{line['id']}"
        return
    (line,) = audit(tmp_path)
    told = (line["action"], line["counts"], line["ended"])
    assert told == ("redrive", {"done": 20}, "stopped")
    assert len((tmp_path / "ran").read_text()) == 20
    assert "redrive by" in said
    assert "Traceback" not in said
