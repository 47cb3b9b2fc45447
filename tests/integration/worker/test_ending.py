"""The end of a worker: after its events in flight, within a limit, or at once."""

from __future__ import annotations

import json
import signal

from tests.helpers import until
from tests.integration.worker.conftest import Site, event, finished, health
from tests.servers import free_port


def test_sigterm_lets_events_in_flight_finish_and_returns_the_others_to_the_queue(
    sites: dict[str, Site],
) -> None:
    ports = {sink: free_port() for sink in sites}
    for sink, site in sites.items():
        site.configure(sink, concurrency=2, visibility="60s", lease="60s", health=ports[sink])
        site.send(*map(event, range(5)))
    workers = [(sink, site, site.start("--json")) for sink, site in sites.items()]
    for sink, site, worker in workers:
        until(lambda site=site: len(site.notes("begun")) == 2)  # type: ignore[misc]
        worker.send_signal(signal.SIGTERM)
        # Only when the worker is ending: before, it would continue with the next events.
        until(lambda sink=sink: health(ports[sink], "ready")[1]["draining"])  # type: ignore[misc]
        site.go()
    for _, site, worker in workers:
        code, said = finished(worker)
        assert code == 0, said
        assert "ending: SIGTERM" in said
        # The output also has the lines of the log, which are JSON, too.
        assert {"done": 2, "unfinished": 0} in [
            json.loads(line) for line in said.splitlines() if line.startswith("{")
        ]
        assert len(site.notes("ran")) == 2
        # No worker holds the other events, unlike a killed worker for a minute.
        assert site.counts() == (3, 0)
        site.start()
    for site in sites.values():
        until(lambda site=site: len(site.notes("ran")) == 5)  # type: ignore[misc]
        site.emptied()
        assert len(set(site.notes("ran"))) == 5


def test_an_event_that_does_not_finish_in_time_is_freed_and_runs_in_another_worker_at_once(
    sites: dict[str, Site],
) -> None:
    for sink, site in sites.items():
        site.configure(sink, drain="0.5s", visibility="10m", lease="10m")
        site.send(event(1))
    workers = [(sink, site, site.start()) for sink, site in sites.items()]
    for _, site, worker in workers:
        site.noted("begun 1")
        worker.send_signal(signal.SIGINT)
    for sink, site, worker in workers:
        code, said = finished(worker)
        assert code == 1, said
        assert "1 events are not finished" in said
        assert site.notes("cancelled") == ["cancelled 1"] * (sink == "awaiting")
        site.go()
        site.start()
    for site in sites.values():
        # Neither the visibility nor the lease of ten minutes is waited for.
        site.noted("ran 1")
        site.emptied()
        assert site.notes("ran") == ["ran 1"]


def test_the_second_signal_ends_the_worker_at_once(site: Site) -> None:
    site.configure("waiting", drain="1h")
    site.send(event(1))
    worker = site.start()
    site.noted("begun 1")
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)
    until(lambda: worker.poll() is not None)
    # The order in which the two signals are handled is not defined.
    assert finished(worker)[0] in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert site.notes() == ["begun 1"]
