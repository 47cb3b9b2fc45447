"""The background writes of a history: in an outage, after a fork, at the end of a process."""

from __future__ import annotations

import gc
import os
import select
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

import msgspec
import pytest

from eventonce import Job, log
from eventonce.history import History, Search, recorder
from eventonce.history import tables as tables_module
from eventonce.runtime import background
from tests.helpers import PATIENCE, call, until
from tests.integration.histories import consumer, exit_of
from tests.servers import free_port
from tests.servers.postgres import Cluster
from tests.servers.relay import relaying


def test_decisions_that_the_database_refuses_are_left_out_and_logged(
    history: History, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consumer(history, handler=lambda _: None)

    def refuse(*_: object) -> None:
        raise history._connection._module.DataError("too odd")

    with monkeypatch.context() as patched:
        patched.setattr(tables_module.Tables, "add", refuse)
        made.process([call(1)])
        history.flush()
    assert "1 events are left out: history " in caplog.text
    made.process([call(2)])
    history.flush()
    assert [one.id for one in history.find(Search())] == ["id-2"]


def test_an_interrupted_write_is_repeated_and_stored_once(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    made = consumer(history, handler=lambda _: None)
    # The thread of the history waits meanwhile.
    with history._background.writing:
        made.process([call(1)])
        with monkeypatch.context() as patch:
            patch.setattr(history._connection._opened._driver, "commit", interrupt)
            with pytest.raises(KeyboardInterrupt):
                history.flush()
        history.flush()
    assert [one.id for one in history.find(Search())] == ["id-1"]
    assert history._background._size == 0


def test_decisions_wait_for_a_history_that_is_away_and_are_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SECOND_LINE", 3600)
    path = tmp_path / "history.db"
    with History(f"sqlite:///{path}") as history:
        made = consumer(history, handler=lambda _: None)
        with history._tables() as tables:
            tables._driver.run("DROP TABLE eventonce_history")
            tables._driver.commit()
        assert made.process([call(1)])[0].status == "done"
        history.flush()
        history.flush()
        told = [line for line in caplog.messages if line.startswith("history: ")]
        assert [line.partition(" yet")[0] for line in told] == ["history: 1 events are not written"]
        with history._tables() as tables:
            # Before the thread of the history can write again, and log that.
            caplog.set_level("INFO")
            tables.make()
        history.flush()
        history.flush()
        assert caplog.text.count("history: written again, after ") == 1
        assert [one.id for one in history.find(Search())] == ["id-1"]


def test_written_decisions_are_not_written_again_when_old_decisions_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(recorder, "TIDY_INTERVAL", -1)
    monkeypatch.setattr(tables_module.Tables, "drop", fail)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        consumer(history, handler=lambda _: None).process([call(1)])
        history.flush()
        history.flush()
        assert len(history.find(Search())) == 1
    assert "old decisions are not deleted yet" in caplog.text


def dropped_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [line for line in caplog.messages if "decisions were lost" in line]
    assert all("too many others waited to be written" in it for it in said)
    return [line.partition(":")[2].split()[0] for line in said]


def test_decisions_that_come_faster_than_they_are_written_are_left_out_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 5)
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        made = consumer(history, handler=lambda _: None)
        for number in range(3):
            made.process([call(10 * number + n) for n in range(3)])
        history.flush()
        assert history.dropped == 6
        assert len(history.find(Search())) == 3
        made.process([call(99)])
        history.flush()
    assert dropped_lines(caplog) == ["6"]


def test_decisions_left_out_while_writes_fail_are_logged_soon_and_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 2)
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    monkeypatch.setattr(log, "SECOND_LINE", 3600)

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("away")

    with History(f"sqlite:///{tmp_path}/history.db") as history:
        made = consumer(history, handler=lambda _: None)
        with monkeypatch.context() as patch:
            patch.setattr(tables_module.Tables, "add", fail)
            for number in range(10):
                made.process([call(number)])
                history.flush()
                history._after_turn()
            assert dropped_lines(caplog) == ["1"]
            history._after_turn()
            assert dropped_lines(caplog) == ["1"]
        history.flush()
        history._after_turn()
        assert dropped_lines(caplog) == ["1", "7"]
        assert history.dropped == 8


def test_the_background_thread_logs_decisions_that_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 0)
    monkeypatch.setattr(background, "WRITE_INTERVAL", 0.01)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        history.keep_up()
        consumer(history, handler=lambda _: None).process([call(1)])
        until(lambda: dropped_lines(caplog) == ["1"])


def test_large_events_that_wait_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 50)
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        made = consumer(history, handler=lambda _: None)
        for number in range(5):
            made.process([call(number, text="x" * 24 * recorder.DECISION_BYTES)])
        history.flush()
        assert (len(history.find(Search())), history.dropped) == (2, 3)
        made.process([call(9)])
    assert history.dropped == 3, "there is room again"


def test_a_waiting_decision_holds_neither_a_traceback_nor_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of waiting decisions does not count the memory of a traceback or a result."""

    class Large:
        """A value whose deletion can be observed."""

    held: list[ReferenceType[Large]] = []

    def fails(job: Job) -> list[str]:
        large = Large()
        held.append(ref(large))
        if job.event.detail["call"] == 1:
            raise ValueError("no line")
        return ["a result"]

    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        consumer(history, handler=fails).process([call(1), call(2)])
        gc.collect()
        assert [one() for one in held] == [None, None]
        ((outcomes, *_),) = history._background._waiting
        assert [one.result for one in outcomes] == [None, None]
        history.flush()
        assert {one.reason[-7:] for one in history.find(Search())} == {"no line", ""}


def test_the_child_of_a_fork_keeps_its_decisions(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri) as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(1)])
        child = os.fork()
        if not child:
            made.process([call(2)])
            history.flush()
            os._exit(0)
        assert exit_of(child) == 0
        history.flush()
        found = history.find(Search())
        assert sorted(one.id for one in found) == ["id-1", "id-2"]
        assert len({one.worker for one in found}) == 2


def test_a_child_loses_no_decision_when_its_parent_closes_the_history(uri: str) -> None:
    history = History(uri)
    made = consumer(history, handler=lambda _: None)
    wrote, closed = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        made.process([call(1)])
        history.flush()
        os.write(wrote[1], b"x")
        os.read(closed[0], 1)
        made.process([call(2)])
        history.flush()
        os._exit(0)
    assert select.select([wrote[0]], [], [], PATIENCE)[0]
    history.close()
    os.write(closed[1], b"x")
    assert exit_of(child) == 0
    for end in (*wrote, *closed):
        os.close(end)
    with History(uri, look=True) as reader:
        assert [one.id for one in reader.find(Search())] == ["id-1", "id-2"]


def test_a_fork_during_a_write_blocks_neither_the_parent_nor_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FORK_WAIT", 0.05)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        made = consumer(history, handler=lambda _: None)
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with history._tables():
                held.set()
                assert over.wait(PATIENCE)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(PATIENCE)
        child = os.fork()
        if not child:
            made.process([call(2)])
            history.close()
            os._exit(0)
        try:
            assert exit_of(child) == 0
        finally:
            over.set()
            thread.join(PATIENCE)
        assert [one.id for one in history.find(Search())] == ["id-2"]


def test_two_flushes_at_once_count_the_waiting_decisions_once(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        consumer(history, handler=lambda _: None).process([call(1)])
        with history._tables():
            both = [threading.Thread(target=history.flush) for _ in range(2)]
            for one in both:
                one.start()
            # Nothing shows that both threads wait; where they do not, the test passes as well.
            time.sleep(0.05)
        for one in both:
            one.join()
        assert history._background._size == 0
        assert len(history.find(Search())) == 1


def test_a_silent_database_does_not_keep_a_process_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "CLOSE_WAIT", 0.05)
    history = History(f"sqlite:///{tmp_path}/history.db")
    made = consumer(history, handler=lambda _: None)
    in_write, over = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        in_write.set()
        assert over.wait(PATIENCE)
        raise ValueError("nobody hears of it")

    monkeypatch.setattr(history._connection._opened, "add", hang)
    made.process([call(1)])
    thread = history._background._thread
    assert thread is not None
    try:
        assert in_write.wait(PATIENCE)
        made.process([call(2), call(3)])
        history.close()
        line = "history: 3 events are left out: the last write does not end"
        assert [it.getMessage() for it in caplog.records] == [line]
        assert history.dropped == 3, "in the write, and after it"
        made.process([call(4)])
        assert history.dropped == 4, "what comes after the end is left out"
    finally:
        over.set()
        thread.join(PATIENCE)
    history.close()
    assert history.dropped == 4, "each is counted once"


@pytest.mark.parametrize("midst", [False, True], ids=["before a write", "during a write"])
def test_a_silent_server_is_disconnected_and_the_decisions_wait(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    midst: bool,
) -> None:
    cluster.execute("DROP SCHEMA IF EXISTS eventonce CASCADE")
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    with (
        relaying(cluster.port) as relay,
        History(f"postgresql://postgres@127.0.0.1:{relay.port}/postgres") as history,
    ):
        consumer(history, handler=lambda _: None).process([call(1)])
        driver: Any = history._connection._opened._driver
        run_many, address = driver.run_many, driver._address

        def write_into_silence(*args: Any) -> None:
            relay.silence()
            driver._connection.timeout = 0.1
            run_many(*args)

        with monkeypatch.context() as patch:
            if midst:
                patch.setattr(driver, "run_many", write_into_silence)
            else:
                relay.silence()
                options = msgspec.structs.replace(address.options, timeout=0.1)
                patch.setattr(driver, "_address", msgspec.structs.replace(address, options=options))
            silent = driver._connection
            history.flush()
        assert silent.closed
        told = [line for line in caplog.messages if line.startswith("history: ")]
        assert len(told) == 1
        assert told[0].startswith("history: 1 events are not written yet: ")
        assert told[0].endswith("no answer within 0.1 s")
        history.flush()
        assert [one.id for one in history.find(Search())] == ["id-1"]


def test_a_silent_history_does_not_hold_up_an_invocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    monkeypatch.setattr(recorder, "FLUSH_WAIT", 0.05)
    with History(f"sqlite:///{tmp_path}/history.db") as history, ThreadPoolExecutor() as pool:
        made = consumer(history, handler=lambda _: None)
        with history._tables():
            made.process([call(1)])
            pool.submit(made.runtime.flush).result(PATIENCE)
            first = history._background._flushing
            # A flush during that write does not wait.
            monkeypatch.setattr(recorder, "FLUSH_WAIT", 2 * PATIENCE)
            made.process([call(2)])
            pool.submit(made.runtime.flush).result(PATIENCE)
            assert history._background._flushing is first
        assert first is not None
        first.join(PATIENCE)
        made.process([call(3)])
        made.runtime.flush()
        assert [one.id for one in history.find(Search())] == ["id-1", "id-2", "id-3"]


def test_decisions_that_are_not_written_at_the_end_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(f"sqlite:///{tmp_path}/history.db")
    with history._tables() as tables:
        tables._driver.run("DROP TABLE eventonce_history")
        tables._driver.commit()
    consumer(history, handler=lambda _: None).process([call(1)])
    history.close()
    assert "history: 1 events are left out" in caplog.text
    assert history.dropped == 1


def test_a_fork_waits_for_the_end_of_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FORK_WAIT", PATIENCE)
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri) as history:
        made = consumer(history, handler=lambda _: None)
        within, go_on, forked = threading.Event(), threading.Event(), threading.Event()

        def write() -> None:
            with history._tables() as tables:
                tables._driver.run("DELETE FROM eventonce_history")
                within.set()
                assert go_on.wait(PATIENCE)
                tables._driver.commit()

        def fork() -> None:
            child = os.fork()
            if not child:
                made.process([call(2)])
                history.flush()
                os._exit(int(history.dropped))
            forked.set()
            codes.append(exit_of(child))

        codes: list[int] = []
        threads = [threading.Thread(target=write), threading.Thread(target=fork)]
        threads[0].start()
        assert within.wait(PATIENCE)
        threads[1].start()
        assert not forked.wait(0.1)
        go_on.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert codes == [0]
        assert [one.id for one in history.find(Search())] == ["id-2"]


def test_a_worker_begins_although_its_history_is_away(caplog: pytest.LogCaptureFixture) -> None:
    with History(f"postgresql://127.0.0.1:{free_port()}/nothing") as history:
        assert "decisions wait in memory for the database" in caplog.text
        assert consumer(history, handler=lambda _: None).process([call(1)])[0].status == "done"
        history.flush()
        history.keep_up()
        history._tidy_if_due()
        assert len(caplog.records) == 1, "one line says all"
    assert history.dropped == 1
    assert [it.getMessage() for it in caplog.records[1:]] == [
        "history: 1 events are left out: they could not be written"
    ]
