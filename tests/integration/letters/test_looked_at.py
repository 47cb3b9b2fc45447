"""A queue of dead letters that the command line reads: no message is lost or hidden."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eventonce.aws.sqs import Entry, Queue
from eventonce.letters.sources import QueueLetterSource
from eventonce.privacy import Sealer
from tests.helpers import Run, call, until
from tests.integration.letters.queues import Make, consumer_of, effects, fill


def test_reading_a_queue_hides_no_message_from_other_receivers(make: Make, run: Run) -> None:
    queue = make(VisibilityTimeout="3600")
    fill(queue)
    listed = run("list", "--from", queue.uri, "--json").documents
    assert len(listed) == 12
    assert len(queue.visible()) == 12
    (one,) = run("show", listed[3]["id"], "--from", queue.uri, "--json").documents
    assert one["reason"] == listed[3]["reason"]
    assert one["event"]["detail-type"] == "call"
    exported = run("export", "--from", queue.uri).out.splitlines()
    assert sorted(line.encode() for line in exported) == sorted(call(n) for n in range(12))
    assert len(queue.visible()) == 12


def test_an_interrupted_reader_makes_its_messages_visible_again(make: Make) -> None:
    queue = make(VisibilityTimeout="3600")
    fill(queue)

    def interrupted() -> None:
        with QueueLetterSource(Queue.from_uri(queue.uri), "crm", Sealer([])) as letters:
            next(letters.read())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(queue.visible()) == 12


READ = """
import sys
from eventonce.aws.sqs import Queue
from eventonce.letters.sources import QueueLetterSource
from eventonce.privacy import Sealer
letters = QueueLetterSource(Queue.from_uri(sys.argv[1]), "crm", Sealer([]), visibility=1)
print(len(next(letters.read())), flush=True)
sys.stdin.read()
"""


def test_the_messages_of_a_killed_reader_become_visible_after_its_visibility_timeout(
    make: Make,
) -> None:
    queue = make(VisibilityTimeout="3600")
    fill(queue, 1)
    with subprocess.Popen(
        [sys.executable, "-c", READ, queue.uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"1\n"
        reader.kill()
    until(lambda: len(queue.visible()) == 1)


def test_a_reader_receives_with_a_visibility_timeout_of_half_a_minute(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(VisibilityTimeout="3600")
    fill(queue, 1)
    letters = QueueLetterSource(Queue.from_uri(queue.uri), "crm", Sealer([]))
    asked: list[dict[str, Any]] = []
    receive = Queue.receive

    def noting(*args: Any, **options: Any) -> Any:
        asked.append(options)
        return receive(*args, **options)

    monkeypatch.setattr(Queue, "receive", noting)
    next(letters.read())
    assert [options["visibility"] for options in asked] == [30]
    letters._queue.close()


def test_a_queue_is_read_to_its_end_though_its_messages_come_back_meanwhile(make: Make) -> None:
    """The first messages of a long queue come back before its end; here they come back at once."""
    queue = make()
    fill(queue, 45)
    with QueueLetterSource(Queue.from_uri(queue.uri), "crm", Sealer([]), visibility=0) as letters:
        found = [held.letter.id for some in letters.read() for held in some]
    assert (len(found), len(set(found))) == (45, 45)
    assert len(queue.visible()) == 45


def test_odd_messages_of_another_sender_spoil_no_command(make: Make, run: Run) -> None:
    queue = make()
    ours = {"letter": "x", "status": "dead", "at": "9" * 5000, "encoding": "base64"}
    odd = [
        Entry("no base64 é", ours),
        Entry('{"busArn":' + "[" * 100_000),
        Entry("{}", {"RULE_ARN": "x", "RETRY_ATTEMPTS": "-1"}),
        Entry("plain text", ours | {"at": "9" * 15, "attempt": "²", "key": "zz"}),
    ]
    assert Queue.from_uri(queue.uri).send(odd) == []
    for command in (["list"], ["show"], ["list", "--json"], ["show", "--json"], ["export"]):
        looked = run(*command, "--from", queue.uri)
        assert (looked.code, "Traceback" in looked.err) == (0, False)
    assert len(run("list", "--from", queue.uri, "--json").documents) == 4


def test_a_dry_run_hides_no_message(make: Make, run: Run) -> None:
    queue = make(VisibilityTimeout="3600")
    fill(queue, 3)
    consumer_of("", store="sqlite:///store.db").close()
    foretold = run("redrive", "--dry-run", "--from", queue.uri, "--json").documents[0]
    assert foretold["would_run"] == 3
    assert len(queue.visible()) == 3
    assert effects() == []


def test_the_dead_letters_of_a_queue_are_dropped_only_after_a_confirmation(
    make: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(VisibilityTimeout="3600")
    fill(queue, 2)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    refused = run("drop", "--from", queue.uri)
    assert "Drop 2 dead letters for good?" in refused.err
    assert (refused.code, len(queue.visible())) == (1, 2)


def test_dead_letters_are_dropped_from_a_queue(make: Make, run: Run) -> None:
    queue = make()
    fill(queue, 3)
    dropped = run("drop", "--from", queue.uri, "--reason", "id-1", "--yes", "--json")
    assert json.loads(dropped.out) == {"dropped": 1}
    assert [line[-4:] for line in queue.values_of("reason")] == ["id-0", "id-2"]


def test_a_missing_queue_is_reported(make: Make, run: Run) -> None:
    refused = run("list", "--from", make(create=False).uri)
    assert refused.code == 2
    assert "no such queue" in refused.err
    assert "the work begins" not in refused.err
    assert run("list", "--from", "kafka://topic").code == 2


@pytest.mark.usefixtures("existing_store")
def test_a_conversation_is_erased_from_a_queue_and_other_conversations_stay(
    make: Make, run: Run
) -> None:
    queue = make(VisibilityTimeout="3600")
    with consumer_of(queue.uri) as consumer:
        consumer.process([call(number, contactId=f"c-{number % 3}") for number in range(12)])
    file = Path("eventonce.toml")
    file.write_text(f'letters = "{queue.uri}"\n{file.read_text()}')
    assert isinstance(run, partial), "it begins with the word `letters`"
    command: Run = run.func
    for option in ("--dry-run", "--yes"):
        found = command("forget", "--conversation", "c-1", option, "--json").documents[0]
        (queued,) = (it for it in found["parts"] if it["what"] == "dead letters in the queue")
        assert (queued["found"], queued["left"]) == (4, None if option == "--dry-run" else 0)
    kept = [json.loads(message["Body"])["detail"]["contactId"] for message in queue.visible()]
    assert sorted(kept) == ["c-0"] * 4 + ["c-2"] * 4
