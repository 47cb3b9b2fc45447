"""Privacy: dead letters and results are sealed with the user's own key before a store or a queue
sees them.

`keys` has the keys, `sealer` seals and opens bytes, `sealed_store` wraps the store of a consumer.
"""

from __future__ import annotations

from eventonce.privacy.sealed_store import NOT_OPENED as NOT_OPENED
from eventonce.privacy.sealed_store import SealedLetters as SealedLetters
from eventonce.privacy.sealed_store import SealedStore as SealedStore
from eventonce.privacy.sealed_store import opened_letter as opened_letter
from eventonce.privacy.sealed_store import sealed as sealed
from eventonce.privacy.sealer import Sealer as Sealer
