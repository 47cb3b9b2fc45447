"""The worker: takes events from a source, many at a time, and gives each back or acknowledges it.

It knows the source by its port alone; `cli.run` puts queue, consumer and worker together.
"""

from eventonce.worker.worker import ExitReport, Worker, WorkerSettings

__all__ = ["ExitReport", "Worker", "WorkerSettings"]
