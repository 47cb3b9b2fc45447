"""The history: every decision about every event, kept beside the store for people to search.

The record of a key in the store has the present state. The history has the way to it: which copy
took effect, which copies were dropped and why, by which attempt and worker.
"""

from __future__ import annotations

from eventonce.history.decision import Decision as Decision
from eventonce.history.recorder import History as History
from eventonce.history.search import Search as Search
