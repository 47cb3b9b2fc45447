"""The history: what was decided about every event, kept beside the store and asked later.

The record of a key in the store says what is true now; the history says how it came to that, for
people: which copy took effect, which were dropped and why, by which attempt and worker.
"""

from __future__ import annotations

from eventonce.history.decision import Decision as Decision
from eventonce.history.recorder import History as History
from eventonce.history.search import Search as Search
