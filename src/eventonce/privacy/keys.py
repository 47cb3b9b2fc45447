"""Sealing keys: a local key of 32 bytes, or a key of AWS KMS. A sealing key wraps data keys."""

from __future__ import annotations

import re
from base64 import b64decode
from functools import partial
from hashlib import blake2b
from os import urandom
from time import monotonic
from typing import Any, Final

from eventonce.aws import errors
from eventonce.aws.sessions import Access, Client, connect
from eventonce.core.masking import split
from eventonce.errors import ConfigError, EventonceError, StoreUnavailable, module_of

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12

KMS: Final = "kms://"
KMS_TIMEOUT: Final = 2.0
KMS_ATTEMPTS: Final = 2
"""Attempts of one request: the caller waits for a data key only a few seconds."""
KMS_PAUSE: Final = 30.0
"""Seconds without a request after KMS did not answer; otherwise every event would wait for KMS."""

KMS_CONTEXT: Final = {"eventonce": "data key"}
"""The encryption context of data keys: a policy can allow the key for this context alone."""

_HEX: Final = re.compile("[0-9a-fA-F]{64}")
_KMS_NAME: Final = re.compile(r"(?:[\w-]+|alias/[\w/-]+|arn:aws[\w-]*:kms:[\w-]+:\d+:[\w/-]+)")

WRONG_KEY: Final = (
    "expected a key of 32 bytes in base64 or hexadecimal, such as `openssl rand -base64 32` "
    "prints, or kms://KEY?region=…"
)


def cipher(key: bytes) -> Any:
    """Return AES-256-GCM with this key."""
    # Imported here: an extra, and slow to import.
    aead = module_of("privacy", "cryptography.hazmat.primitives.ciphers.aead", "sealing_keys need")
    return aead.AESGCM(key)


def refused() -> type[Exception]:
    """Return the exception of a cipher for bytes that were changed or sealed with another key."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415  as above

    return InvalidTag


class LocalKey:
    """A key of 32 bytes. Its id is a digest of the key, so it is the same in every process."""

    def __init__(self, key: bytes) -> None:
        self.name = blake2b(key, digest_size=8, person=b"eventonce key id").hexdigest()
        """The name of the key in messages; never the key itself."""
        self._cipher = cipher(key)

    def made(self) -> tuple[str, bytes, bytes]:
        """Make a data key; return the id of this key, the data key, and the wrapped data key."""
        data_key, nonce = urandom(KEY_BYTES), urandom(NONCE_BYTES)
        return self.name, data_key, nonce + self._cipher.encrypt(nonce, data_key, b"data key")

    def opened(self, id: str, wrapped: bytes) -> bytes | None:
        """Unwrap the data key that was wrapped under this id; None if another key wrapped it."""
        if id != self.name:
            return None
        try:
            nonce, rest = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
            data_key: bytes = self._cipher.decrypt(nonce, rest, b"data key")
        except (refused(), ValueError):
            return None
        return data_key


class KmsKey:
    """A key of KMS, which never leaves KMS. Its id in sealed bytes is its ARN."""

    def __init__(self, uri: str) -> None:
        parts = split(uri)
        self._key = f"{parts.netloc}{parts.path}"
        if not _KMS_NAME.fullmatch(self._key):
            raise ConfigError(
                "write kms://KEY?region=…, where KEY is the id, the ARN or the alias/NAME of a key"
            )
        self.name = f"{KMS}{self._key}"
        access = Access.from_query(parts.query, self.name)
        if self._key.startswith("arn:"):
            access = access.over(Access(self._key.split(":")[3]))
        make = partial(
            connect,
            "kms",
            access,
            read_timeout=KMS_TIMEOUT,
            connect_timeout=KMS_TIMEOUT,
            attempts=KMS_ATTEMPTS,
        )
        self._client = Client(make, self._explain)
        self._away: tuple[float, str] | None = None

    def made(self) -> tuple[str, bytes, bytes]:
        answer = self._call("generate_data_key", KeySpec="AES_256")
        return answer["KeyId"], answer["Plaintext"], answer["CiphertextBlob"]

    def opened(self, id: str, wrapped: bytes) -> bytes | None:
        if not id.startswith("arn:"):
            return None
        try:
            # `_call` names the key: otherwise KMS decrypts with any key that the role may use,
            # such as a key of an attacker.
            answer = self._call("decrypt", CiphertextBlob=wrapped)
        except EventonceError as error:
            code = errors.code_of(error.__cause__) if error.__cause__ is not None else ""
            if code in ("IncorrectKeyException", "InvalidCiphertextException"):
                return None
            raise
        # Only the ids are compared: a multi-Region key has another ARN in each region.
        if answer["KeyId"].rpartition("/")[2] != id.rpartition("/")[2]:
            return None
        data_key: bytes = answer["Plaintext"]
        return data_key

    def _call(self, operation: str, **asked: Any) -> dict[str, Any]:
        # Read once: another thread may set it to None. A new error each time: the traceback of one
        # error would grow with every raise.
        away = self._away
        if away is not None and monotonic() < away[0]:
            raise StoreUnavailable(away[1])
        try:
            answer = self._client.call(
                operation, KeyId=self._key, EncryptionContext=KMS_CONTEXT, **asked
            )
        except StoreUnavailable as error:
            self._away = (monotonic() + KMS_PAUSE, str(error))
            raise
        self._away = None
        return answer

    def _explain(self, error: Exception) -> EventonceError:
        if errors.kind_of(error) == "denied":
            return ConfigError(
                f"{self.name}: permission denied ({errors.message_of(error)}). Grant the role "
                "kms:GenerateDataKey and kms:Decrypt on this key."
            )
        return errors.explain(error, self.name, noun="key", unavailable=StoreUnavailable)


SealingKey = LocalKey | KmsKey
"""A key that wraps data keys."""


def sealing_key(text: str) -> SealingKey:
    """Return the key that this text is, or names; a ConfigError does not repeat the text."""
    if text.startswith(KMS):
        return KmsKey(text)
    if _HEX.fullmatch(text):
        return LocalKey(bytes.fromhex(text))
    try:
        key = b64decode(text.strip(), validate=True)
    except ValueError:
        raise ConfigError(WRONG_KEY) from None
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{WRONG_KEY}; this key has {len(key)} bytes")
    return LocalKey(key)
