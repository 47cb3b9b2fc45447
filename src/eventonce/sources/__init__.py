"""Where a worker's events come from: a queue, or a capture in files."""

from eventonce.sources.lines import Lines
from eventonce.sources.sqs import SQSSource

__all__ = ["Lines", "SQSSource"]
