"""Letters in SQS queues: sent to one, and read from any dead-letter queue."""

from eventonce.letterbox.dlq import DeadLetters, Held
from eventonce.letterbox.queue import QueueLetters

__all__ = ["DeadLetters", "Held", "QueueLetters"]
