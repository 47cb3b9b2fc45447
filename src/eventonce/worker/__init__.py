"""The worker: receives events from a source, many at a time, and acknowledges or postpones each.

The worker knows the source only by its protocol; `cli.run` connects queue, consumer and worker.
"""

from eventonce.worker.worker import ExitReport, Worker, WorkerSettings

__all__ = ["ExitReport", "Worker", "WorkerSettings"]
