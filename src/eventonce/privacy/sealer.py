"""The sealer: seals bytes with a data key, which is stored beside them, wrapped by a sealing key.

The format: `MARK`, the id of the sealing key, the wrapped data key (each after its length), a
nonce, and the output of AES-256-GCM. All of it is authenticated, together with the place of the
content: sealed bytes that were changed, or moved to another place, do not open.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

from eventonce import forks
from eventonce.core.sealed import MARK, key_of
from eventonce.errors import ConfigError, EventonceError, SealedError, StoreUnavailable
from eventonce.log import Outage, log
from eventonce.privacy.keys import NONCE_BYTES, SealingKey, cipher, refused, sealing_key

DATA_KEY_AGE: Final = 3_600.0
"""Seconds that a data key seals, and that an unwrapped data key is kept in memory."""

LONGEST_AGE: Final = 4 * DATA_KEY_AGE
"""The most seconds that a data key seals, while KMS gives no new one."""

DATA_KEY_USES: Final = 1 << 20
"""The most contents that one data key seals: far below 2**32, the limit for random nonces."""

MOST_OPENED: Final = 1_024
"""The most unwrapped data keys in memory: each process makes one an hour."""


class _DataKey(NamedTuple):
    """A data key in use."""

    cipher: Any
    header: bytes
    made: float


class Sealer:
    """Seals with the first of its keys, and opens with all of them; thread-safe."""

    def __init__(self, keys: Sequence[str]) -> None:
        """A key is 32 bytes in base64 or hexadecimal, or `kms://KEY?region=…`. Without a key,
        nothing is sealed or opened."""
        if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
            raise ConfigError("sealing_keys: expected a list of texts, the key in use first")
        self.keys: list[SealingKey] = []
        faults = []
        for number, key in enumerate(keys):
            try:
                self.keys.append(sealing_key(key))
            except ConfigError as error:
                faults.append(f"sealing_keys[{number}]: {error}")
        if faults:
            raise ConfigError("\n".join(faults))
        self._begin()
        forks.register(self, Sealer._begin)
        self._outage = Outage()
        self._current: _DataKey | None = None
        self._left = 0
        self._opened: OrderedDict[bytes, tuple[Any, float]] = OrderedDict()
        """Ciphers by wrapped data key, with the time of unwrapping; None if no key unwraps it."""

    def _begin(self) -> None:
        """Make the locks, again in a forked child: a thread of the parent may hold the old ones."""
        self._sealing = threading.Lock()
        """Held while a new data key is asked for."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Sealer({[key.name for key in self.keys]})"

    def seal(self, content: bytes, about: bytes) -> bytes:
        """Return the content sealed; `open` needs the same `about`, the place of the content."""
        data_key = self._data_key()
        nonce = os.urandom(NONCE_BYTES)
        secret: bytes = data_key.cipher.encrypt(nonce, content, data_key.header + about)
        return data_key.header + nonce + secret

    @property
    def in_use(self) -> str:
        """The id of the key that seals."""
        return key_of(self._data_key().header)

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Return the content; SealedError if no key opens it, or if it was changed or moved."""
        id_, wrapped, start = _header(sealed)
        opener = self._unwrapped(id_, wrapped)
        nonce, secret = sealed[start : start + NONCE_BYTES], sealed[start + NONCE_BYTES :]
        try:
            content: bytes = opener.decrypt(nonce, secret, sealed[:start] + about)
        except (refused(), ValueError):
            raise SealedError(
                f"sealed with the key {id_!r}, but it does not open: it was changed, or moved here "
                "from another place"
            ) from None
        return content

    def _data_key(self) -> _DataKey:
        if not self.keys:
            raise ConfigError("sealing_keys: there is no key to seal with")
        with self._sealing:
            now, current = monotonic(), self._current
            if current is None or self._left <= 0 or now - current.made > DATA_KEY_AGE:
                try:
                    id_, key, wrapped = self.keys[0].made()
                except StoreUnavailable as error:
                    if current is None or self._left <= 0 or now - current.made > LONGEST_AGE:
                        raise
                    if self._outage.tells():
                        log().warning("privacy: no new data key, the old one stays: %s", error)
                else:
                    self._outage.ended()
                    current = _DataKey(cipher(key), _headed(id_, wrapped), now)
                    self._current, self._left = current, DATA_KEY_USES
            self._left -= 1
            return current

    def _unwrapped(self, id_: str, wrapped: bytes) -> Any:
        name = id_.encode() + b"\0" + wrapped
        with self._lock:
            known = self._opened.get(name)
        if known is None or monotonic() - known[1] > DATA_KEY_AGE:
            data_key = self._asked(id_, wrapped)
            known = (None if data_key is None else cipher(data_key), monotonic())
            self._remember(name, known)
        if known[0] is None:
            raise SealedError(
                f"sealed with the key {id_!r}, which is none of the sealing_keys that are "
                "configured here; add this key to them, after the key in use"
            )
        return known[0]

    def _remember(self, name: bytes, known: tuple[Any, float]) -> None:
        with self._lock:
            self._opened[name] = known
            self._opened.move_to_end(name)
            while len(self._opened) > MOST_OPENED:
                self._opened.popitem(last=False)

    def _asked(self, id_: str, wrapped: bytes) -> bytes | None:
        """Unwrap the data key with the key that wrapped it; None if none of the keys did."""
        fault: EventonceError | None = None
        for key in self.keys:
            try:
                found = key.opened(id_, wrapped)
            except EventonceError as error:
                # Another key may still unwrap it.
                fault = error
                continue
            if found is not None:
                return found
        if fault is not None:
            raise fault
        return None


def _headed(id_: str, wrapped: bytes) -> bytes:
    name = id_.encode()
    return b"".join(
        (MARK, len(name).to_bytes(1), name, len(wrapped).to_bytes(2), wrapped),
    )


def _header(sealed: bytes) -> tuple[str, bytes, int]:
    """Return the id of the sealing key, the wrapped data key, and where the nonce begins."""
    id_ = key_of(sealed)
    at = len(MARK) + 1 + sealed[len(MARK)] if len(sealed) > len(MARK) else len(sealed)
    start = at + 2 + int.from_bytes(sealed[at : at + 2])
    if not id_ or start + NONCE_BYTES > len(sealed):
        raise SealedError("these bytes are not sealed, or they are cut off")
    return id_, sealed[at + 2 : start], start
