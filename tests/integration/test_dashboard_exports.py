"""Exports of the dashboard, requested over HTTP: a file that is whole or marked as partial, that
only operators download, and that is deleted after its use."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from eventonce import Consumer, Job
from eventonce.aws.sqs import Queue
from eventonce.dashboard import Resources, actions, export_files
from eventonce.dashboard.actions import Action
from eventonce.dashboard.export_files import ExportFile
from eventonce.errors import StoreUnavailable
from eventonce.letters.sources import LIST_VISIBILITY, REDRIVE_VISIBILITY
from eventonce.stores.memory import MemoryStore
from eventonce.types import Letter
from tests.helpers import PATIENCE, call, ruled, until
from tests.integration.test_dashboard_actions import (
    AUTH,
    LETTERS,
    Asking,
    asking,
    audit,
    store_of,
)
from tests.unit.test_export_files import Small
from tests.unit.test_letters_selection import letter

EVENTS = [one.event for one in LETTERS]
PLACE = "/letters/export"


@contextmanager
def exporting(folder: Path, *letters: Letter, store: MemoryStore | None = None) -> Iterator[Asking]:
    """A dashboard over these dead letters, whose audit is in this folder."""
    kept = store or store_of(*letters)
    with asking(Resources(lambda: kept, name="crm", audit=str(folder / "audit.jsonl"))) as asked:
        yield asked


def latest(asked: Asking) -> Action:
    found: Action = asked.app.state.context.actions.latest()[0]
    return found


def file_of(action: Action) -> ExportFile:
    assert action.file is not None
    return action.file


def is_closed(action: Action) -> bool:
    return file_of(action).removed and file_of(action)._file is None


def page(asked: Asking) -> str:
    text = asked.get(f"/actions/{latest(asked).id}").text
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("</b>", "")


def download(asked: Asking) -> httpx.Response:
    return asked.post(f"/actions/{latest(asked).id}/file")


def audit_lines(folder: Path) -> list[tuple[str, str, dict[str, int], str]]:
    return [(one["who"], one["action"], one["counts"], one["ended"]) for one in audit(folder)]


def test_a_file_is_deleted_after_its_download(tmp_path: Path) -> None:
    with exporting(tmp_path, *LETTERS) as asked:
        assert asked.done(PLACE, limit="25") == "{'exported': 25} finished"
        assert ">Download, " in page(asked)
        sent = download(asked)
        assert sent.content.splitlines() == EVENTS[:25]
        assert sent.headers["content-disposition"] == 'attachment; filename="letters.jsonl"'
        assert sent.headers["cache-control"] == "no-store"
        until(lambda: is_closed(latest(asked)))
        shown = page(asked)
        assert "downloaded by ann, and is deleted here" in shown
        assert ">Download" not in shown
        assert "--name=crm --limit=25" in shown
        again = download(asked)
        assert again.status_code == 303, "the second click of a double click"
        assert again.headers["location"] == f"/actions/{latest(asked).id}"
    assert audit_lines(tmp_path) == [
        ("ann", "export", {"exported": 25}, "finished"),
        ("ann", "download", {"downloaded": 25}, "finished"),
    ]
    assert [one["selection"] for one in audit(tmp_path)] == ["--name=crm --limit=25"] * 2


def test_an_export_deletes_no_dead_letter_and_a_form_sent_twice_begins_one_export(
    tmp_path: Path,
) -> None:
    store = store_of(*LETTERS)
    with exporting(tmp_path, store=store) as asked:
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.get(PLACE).text))
        for _ in range(2):
            assert asked.done(PLACE, **fields) == "{'exported': 30} finished"
        assert len(asked.app.state.context.actions.latest()) == 1
    assert len(list(store.letters())) == 30


def test_a_viewer_and_another_site_download_nothing(tmp_path: Path) -> None:
    with exporting(tmp_path, *LETTERS) as asked:
        asked.done(PLACE, limit="99")
        link = f"/actions/{latest(asked).id}/file"
        assert asked.get(link).status_code == 405, "a link of another site can do nothing"
        foreign = asked.http.post(link, headers={"sec-fetch-site": "cross-site"})
        assert (foreign.status_code, b"call" in foreign.content) == (403, False)
        asked.http.auth = httpx.BasicAuth("vic", "vic-password")
        refused = asked.post(link)
        assert (refused.status_code, b"id-1" in refused.content) == (403, False)
        shown = page(asked)
        assert "The file has the events of 30 dead letters" in shown
        assert ">Download" not in shown
        asked.http.auth = httpx.BasicAuth(*AUTH)
        assert file_of(latest(asked)).there
        assert len(download(asked).content.splitlines()) == 30
    assert len(audit_lines(tmp_path)) == 2


def test_an_interrupted_download_can_be_repeated(tmp_path: Path) -> None:
    many = [letter(number, conversation="x" * 500_000) for number in range(60)]
    with exporting(tmp_path, *many) as asked:
        asked.done(PLACE, limit="60")
        with asked.http.stream("POST", f"/actions/{latest(asked).id}/file") as answer:
            assert answer.headers["content-length"] == str(file_of(latest(asked)).size)
            next(answer.iter_bytes())
        until(lambda: len(audit(tmp_path)) == 2)
        assert file_of(latest(asked)).there
        assert download(asked).content.splitlines() == [one.event for one in many]
        until(lambda: is_closed(latest(asked)))
    assert audit_lines(tmp_path)[1:] == [
        ("ann", "download", {}, "stopped"),
        ("ann", "download", {"downloaded": 60}, "finished"),
    ]


def test_a_file_is_kept_if_the_client_disconnects_before_its_end(tmp_path: Path) -> None:
    with exporting(tmp_path, *LETTERS) as asked:
        asked.done(PLACE, limit="99")
        request = asked.http.build_request("POST", f"/actions/{latest(asked).id}/file")
        signed = next(httpx.BasicAuth(*AUTH).auth_flow(request))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "method": "POST",
            "path": signed.url.path,
            "headers": [(name.lower(), value) for name, value in signed.headers.raw],
            "query_string": b"",
        }
        sent: list[Any] = []

        async def receive() -> dict[str, str]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(asked.app(scope, receive, send))
        assert b"".join(one.get("body", b"") for one in sent).splitlines() == EVENTS
        assert file_of(latest(asked)).there
    assert audit_lines(tmp_path)[1:] == [("ann", "download", {}, "stopped")]


def test_two_downloads_at_the_same_time_both_have_the_whole_file(tmp_path: Path) -> None:
    many = [letter(number, conversation="x" * 500_000) for number in range(60)]
    with exporting(tmp_path, *many) as asked:
        asked.done(PLACE, limit="60")
        with asked.http.stream("POST", f"/actions/{latest(asked).id}/file") as answer:
            parts = answer.iter_bytes()
            first = next(parts)
            assert len(download(asked).content.splitlines()) == 60
            until(lambda: file_of(latest(asked)).removed)
            assert b"".join([first, *parts]).splitlines() == [one.event for one in many]
        until(lambda: is_closed(latest(asked)))


class VanishingStore(MemoryStore):
    """A store that becomes unavailable after this number of dead letters was read."""

    left = 0

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        for number, one in enumerate(super().letters(consumer)):
            if number >= self.left:
                raise StoreUnavailable("the store is away")
            yield one


@pytest.mark.parametrize(("left", "exported"), [(0, 0), (100, 100)])
def test_an_export_from_a_store_that_becomes_unavailable_is_marked_as_partial(
    tmp_path: Path, left: int, exported: int
) -> None:
    store = VanishingStore()
    store.left = left
    store.put_letters([letter(number) for number in range(150)])
    with exporting(tmp_path, store=store) as asked:
        assert asked.done(PLACE, limit="150").endswith(" failed")
        shown = page(asked)
        assert "the store is away" in shown
        assert f"{exported} dead letters of 150 at most, failed" in shown
        if not exported:
            assert "No event was exported, so there is no file" in shown
            assert ">Download" not in shown
            assert download(asked).status_code == 303
        else:
            assert f"The export is partial: it ended after {exported} dead letters." in shown
            sent = download(asked)
            assert len(sent.content.splitlines()) == exported
            assert "letters-partial.jsonl" in sent.headers["content-disposition"]
    assert audit_lines(tmp_path)[0][3] == "the store is away"


def test_a_full_disk_ends_an_export_and_the_written_part_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = b"\n".join([*EVENTS[:20], b""])
    monkeypatch.setattr(export_files, "TemporaryFile", lambda **_: Small(len(first) + 7))
    with exporting(tmp_path, *LETTERS) as asked:
        assert asked.done(PLACE, limit="99") == "{'exported': 20} failed"
        assert "cannot be written: No space left on device" in page(asked)
        assert download(asked).content == first
    assert audit_lines(tmp_path)[0][2:] == (
        {"exported": 20},
        "the file of the export cannot be written: No space left on device",
    )


def test_no_download_begins_if_its_audit_cannot_be_written(tmp_path: Path) -> None:
    with exporting(tmp_path, *LETTERS) as asked:
        asked.done(PLACE, limit="99")
        (tmp_path / "audit.jsonl").unlink()
        (tmp_path / "audit.jsonl").mkdir()
        refused = download(asked)
        assert (refused.status_code, "cannot be written" in refused.text) == (409, True)
        assert file_of(latest(asked)).there


def test_an_action_that_is_forgotten_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MOST_REMEMBERED", 2)
    with exporting(tmp_path, *LETTERS) as asked:
        asked.done(PLACE, limit="1")
        oldest = latest(asked)
        asked.done(PLACE, limit="1")
        assert not file_of(oldest).removed
        asked.done(PLACE, limit="1")
        assert is_closed(oldest)
        assert not file_of(latest(asked)).removed


def test_a_file_that_is_not_downloaded_in_time_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_files, "EXPORT_KEPT", 0.01)
    with exporting(tmp_path, *LETTERS) as asked:
        asked.done(PLACE, limit="99")
        until(lambda: is_closed(latest(asked)))
        assert "because nobody downloaded it in time: export them again" in page(asked)
        assert download(asked).status_code == 303


class Held:
    """A pause of an export, before it writes its second batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        written: list[int] = []
        write = ExportFile.write

        def patient(file: ExportFile, lines: bytes) -> None:
            if written:
                self.begun.set()
                assert self.go_on.wait(PATIENCE)
            written.append(len(lines))
            write(file, lines)

        monkeypatch.setattr(ExportFile, "write", patient)

    def go_on_after(self, event: threading.Event) -> None:
        assert event.wait(PATIENCE)
        self.go_on.set()


def test_a_stopped_export_offers_its_partial_file_only_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    with exporting(tmp_path, *(letter(number) for number in range(90))) as asked:
        asked.post(PLACE, limit="90")
        assert held.begun.wait(PATIENCE)
        assert download(asked).status_code == 303, "its end is not written yet"
        assert ">Stop<" in page(asked)
        asked.post(f"/actions/{latest(asked).id}/stop")
        assert "stops after the batch under way" in page(asked)
        held.go_on.set()
        until(lambda: latest(asked).ended)
        shown = page(asked)
        assert "40 dead letters of 90 at most, stopped, after" in shown
        assert "The export is partial: it ended after 40 dead letters." in shown
        assert len(download(asked).content.splitlines()) == 40
    assert [one[1:] for one in audit_lines(tmp_path)] == [
        ("export", {"exported": 40}, "stopped"),
        ("download", {"downloaded": 40}, "finished"),
    ]


def test_the_end_of_the_dashboard_stops_an_export_and_deletes_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    kept: list[ExportFile] = []
    expire = ExportFile.expire

    def noted(file: ExportFile) -> None:
        kept.append(file)
        expire(file)

    monkeypatch.setattr(ExportFile, "expire", noted)
    with exporting(tmp_path, *LETTERS) as asked:
        asked.done(PLACE, limit="1")
        until(lambda: kept)
        asked.post(PLACE, limit="30")
        assert held.begun.wait(PATIENCE)
        second, first = asked.app.state.context.actions.latest()
        stopped = threading.Thread(target=lambda: held.go_on_after(second.progress.stop))
        stopped.start()
    stopped.join()
    assert second.ended
    assert kept == [first.file], "the end of the dashboard does not wait for a download"
    assert is_closed(first)
    assert is_closed(second)
    assert audit_lines(tmp_path)[1] == ("ann", "export", {"exported": 20}, "stopped")


def test_an_export_that_outlasts_the_dashboard_writes_to_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "CLOSE_WAIT", 0.01)
    held = Held(monkeypatch)
    with exporting(tmp_path, *LETTERS, letter(31)) as asked:
        asked.post(PLACE, limit="99")
        assert held.begun.wait(PATIENCE)
        action = latest(asked)
    assert is_closed(action)
    held.go_on.set()
    until(lambda: action.ended)
    assert (action.state, action.error) == ("failed", export_files.FILE_DELETED)
    assert audit_lines(tmp_path) == [("ann", "export", {"exported": 20}, actions.CUT_SHORT)]


def test_dead_letters_of_a_queue_are_exported_and_stay_in_the_queue(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.letters.sources.RECEIVE_WAIT", 0)
    uri = f"sqs://exported?endpoint={endpoint}"
    queue = Queue.from_uri(uri)
    queue.client.create_queue(QueueName="exported")

    def refuse(job: Job) -> None:
        raise ValueError(job.event.id)

    events = [call(number) for number in range(25)]
    rules = ruled(attempts=1)
    with Consumer("memory:", name="crm", rules=rules, handler=refuse, letters=uri) as consumer:
        consumer.process(events)
    file = str(tmp_path / "audit.jsonl")
    hidden: set[int] = set()
    receive = Queue.receive

    def noted(queue: Queue, **more: Any) -> Any:
        hidden.add(more["visibility"])
        return receive(queue, **more)

    monkeypatch.setattr(Queue, "receive", noted)
    with asking(Resources(MemoryStore, name="crm", letters=uri, audit=file)) as asked:
        ended: Any = asked.done(PLACE, limit="99", **{"from": "queue"})
        assert ended == "{'exported': 25} finished"
        assert sorted(download(asked).content.splitlines()) == sorted(events)
        assert "25\u00a0dead letters" in asked.get("/letters?from=queue").text, "none is hidden"
        assert hidden == {LIST_VISIBILITY}, "an export that is killed gives them back soon"
        hidden.clear()
        ended = asked.done("/letters/drop", limit="99", **{"from": "queue"})
        assert ended == "{'dropped': 25} finished"
        assert hidden == {REDRIVE_VISIBILITY}, "no other reader acts on them meanwhile"
    queue.close()
