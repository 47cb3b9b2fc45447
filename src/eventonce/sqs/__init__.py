"""One SQS queue, by its name or its URL: receive, delete, delay, send."""

from eventonce.sqs.entries import Entry, Refused
from eventonce.sqs.queue import Queue

__all__ = ["Entry", "Queue", "Refused"]
