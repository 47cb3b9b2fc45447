"""Workers that are killed, handlers that outlive their lease, and events that kill a process."""

from __future__ import annotations

import signal

from tests.helpers import until
from tests.integration.dynamodb.between import Between
from tests.integration.worker.conftest import Site, event, finished, overheard


def test_a_second_worker_takes_over_from_a_killed_worker_and_each_effect_happens_once(
    site: Site,
) -> None:
    site.configure("waiting", concurrency=2, lease="2s")
    site.send(event(1), event(2))
    first = site.start()
    site.noted("begun 1", "begun 2")
    first.send_signal(signal.SIGKILL)
    assert finished(first)[0] == -signal.SIGKILL
    assert not site.notes("ran")
    site.send(event(3))
    site.go()
    # The events of the first worker are free in two seconds; the second worker keeps its events,
    # however slow it is.
    site.configure("waiting", concurrency=2, lease="60s", visibility="60s")
    site.start()
    site.noted("ran 1", "ran 2", "ran 3")
    site.emptied()
    assert sorted(site.notes("ran")) == ["ran 1", "ran 2", "ran 3"]


def test_a_handler_that_outlives_visibility_and_lease_is_not_run_twice(
    site: Site, between: Between
) -> None:
    site.configure("waiting", lease="2s", queue=site.through(between.url))
    site.start()
    # The idle worker would take over a message that the other worker no longer holds.
    site.start()
    renewed = "ChangeMessageVisibilityBatch"
    # A machine that pauses for two seconds lets both end, and the other worker may run the event:
    # in one of three rounds it does not.
    for number in range(3):
        (site.folder / "go").unlink(missing_ok=True)
        site.send(event(number))
        site.noted(f"begun {number}")
        between.count()
        # Four times in the two seconds that the message is invisible for.
        until(lambda: between.asked.count(renewed) >= 5, otherwise=lambda: between.asked)
        site.go()
        site.noted(f"ran {number}")
        site.emptied()
        if [note for note in site.notes() if note.endswith(f" {number}")] == [
            f"begun {number}",
            f"ran {number}",
        ]:
            return
    raise AssertionError(site.notes())


def test_an_event_that_kills_its_process_is_given_up_after_its_attempts(site: Site) -> None:
    site.configure("deadly", attempts=2, lease="1s")
    site.send(event("deadly"))
    # The first time does not count, because another event might have run beside it.
    for _ in range(3):
        dying = site.start()
        assert finished(dying)[0] == -signal.SIGKILL
    site.send(event(1), event(2))
    # No process is killed any more, and no event must come twice because it took long.
    site.configure("deadly", attempts=2, lease="60s", visibility="60s")
    site.start()
    until(site.letters, otherwise=site.notes)
    site.emptied()
    (letter,) = site.letters()
    assert letter.status == "dead"
    assert b'"deadly"' in letter.event
    assert site.notes("begun") == ["begun deadly"] * 3
    assert sorted(site.notes("ran")) == ["ran 1", "ran 2"]


def test_a_busy_copy_is_postponed_to_the_end_of_the_lease(site: Site, between: Between) -> None:
    site.configure(
        "waiting", lease="30s", visibility="20s", queue=site.through(between.url), concurrency=1
    )
    site.send(event(1), event(1))
    with overheard(between) as delays:
        # Two workers, each of which has room for one event.
        site.start()
        site.start()
        site.noted("begun 1")
        # A renewal asks for 20 s; what is left of a lease of 30 s is more.
        until(lambda: any(20 < delay <= 32 for delay in delays), otherwise=lambda: delays)
    site.go()
    site.noted("ran 1")
    assert site.notes() == ["begun 1", "ran 1"]
