"""Dead letters that a consumer sends to a queue: whole, with their reasons, and none lost."""

from __future__ import annotations

from tests.helpers import Run, call, statuses
from tests.integration.letters.queues import Make, consumer_of


def test_dead_letters_are_sent_with_their_reasons_as_attributes(make: Make) -> None:
    queue = make()
    with consumer_of(queue.uri) as consumer:
        assert statuses(consumer.process([call(1), b"no event \xff"])) == ["dead", "invalid"]
        assert list(consumer.letters()) == []
    with consumer_of(queue.uri, handler=lambda _: None) as consumer:
        consumer.process([call(2)])
        assert statuses(consumer.process([call(2, amount=2)])) == ["conflict"]
    assert queue.values_of("status") == ["conflict", "dead", "invalid"]
    assert queue.values_of("consumer") == ["crm"] * 3
    (dead,) = [message for message in queue.visible() if message["Body"].encode() == call(1)]
    said = {name: value["StringValue"] for name, value in dead["MessageAttributes"].items()}
    assert said["reason"] == "rejected by the handler: no customer for id-1"
    assert (said["rule"], said["attempt"]) == ("call", "1")


def test_an_event_fails_if_the_queue_refuses_its_dead_letter(
    make: Make,
) -> None:
    queue = make(create=False)
    with consumer_of(queue.uri) as consumer:
        outcomes = consumer.process([call(1), b"no event"])
        assert statuses(outcomes) == ["failed", "failed"]
        assert "no such queue" in outcomes[0].reason
        queue.create()
        assert statuses(consumer.process([call(1), b"no event"])) == ["dead", "invalid"]
    assert queue.values_of("status") == ["dead", "invalid"]


def test_a_dead_letter_too_large_for_a_message_is_kept_in_the_store_with_a_notice(
    make: Make,
) -> None:
    queue = make()
    # The event alone would fit; its reason and the other attributes count too.
    large = call(1, filler="x" * ((1 << 20) - 200))
    with consumer_of(queue.uri) as consumer:
        assert statuses(consumer.process([large, call(2)])) == ["dead", "dead"]
        (letter,) = consumer.letters()
    assert letter.event == large
    assert "kept in the store" in letter.reason
    assert queue.values_of("rule") == ["call"]


def test_a_fifo_queue_takes_dead_letters_too(make: Make, run: Run) -> None:
    queue = make(".fifo", FifoQueue="true")
    with consumer_of(queue.uri) as consumer:
        consumer.process([call(1), call(2), call(3)])
    assert len(run("list", "--from", queue.uri, "--json").documents) == 3
