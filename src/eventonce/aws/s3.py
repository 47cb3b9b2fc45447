"""S3: the objects under a prefix, listed page by page and read as streams."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from typing import IO, Any, Final, NamedTuple, cast
from urllib.parse import unquote

from eventonce.aws import errors
from eventonce.aws.sessions import Access, Client, connect
from eventonce.core.masking import masked, split
from eventonce.errors import ConfigError, EventonceError

S3_READ_TIMEOUT: Final = 60.0
S3_ATTEMPTS: Final = 4
"""Attempts of a request, and attempts to continue an object after its connection broke."""
BUFFER_BYTES: Final = 1 << 20
PAGE_OBJECTS: Final = 1_000
"""Objects that one request lists: the limit of S3."""


class Object(NamedTuple):
    """One object of a bucket."""

    key: str
    size: int


class Address(NamedTuple):
    """The bucket, the prefix and the access of a URI."""

    bucket: str
    prefix: str
    access: Access


def parse(uri: str) -> Address:
    """Return the address of `s3://BUCKET/PREFIX?region=…&endpoint=…&profile=…`."""
    parts = split(uri)
    if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc:
        raise ConfigError(
            f"S3: {masked(uri)!r} is not the URI of a bucket; write s3://BUCKET/PREFIX. "
            "Credentials do not belong in it: they come from the role, the profile or the "
            "environment."
        )
    access = Access.from_query(parts.query, f"s3://{parts.netloc}")
    return Address(parts.netloc, unquote(parts.path.lstrip("/")), access)


class Bucket:
    """One bucket, for reading."""

    def __init__(self, name: str, access: Access = Access()) -> None:  # noqa: B008  frozen
        self.name = name
        make = partial(connect, "s3", access, read_timeout=S3_READ_TIMEOUT, attempts=S3_ATTEMPTS)
        self._client = Client(make, self._explain)

    def objects(self, prefix: str) -> Iterator[Object]:
        """Yield the objects whose keys begin with this prefix, by key."""
        asked: dict[str, Any] = {"Bucket": self.name, "Prefix": prefix, "MaxKeys": PAGE_OBJECTS}
        while True:
            page = self._client.call("list_objects_v2", **asked)
            for one in page.get("Contents", ()):
                yield Object(one["Key"], one["Size"])
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    def open(self, key: str) -> IO[bytes]:
        """Return the object as a stream. After a broken connection the stream continues at the same
        byte, unless the object was replaced meanwhile."""
        return cast(
            "IO[bytes]", io.BufferedReader(_Body(self._client, self.name, key), BUFFER_BYTES)
        )

    def _explain(self, error: Exception) -> EventonceError:
        kind, code = errors.kind_of(error), errors.code_of(error)
        place = f"s3://{masked(self.name)}"
        if kind == "absent":
            return ConfigError(f"{place}: {code}: check the name and the region")
        if kind == "denied":
            return ConfigError(
                f"{place}: permission denied. Reading needs s3:ListBucket on the bucket and "
                "s3:GetObject on its objects."
            )
        return errors.explain(error, place, noun="bucket")


class _Body(io.RawIOBase):
    """The bytes of an object, over several connections if one breaks."""

    def __init__(self, client: Client, bucket: str, key: str) -> None:
        self._client = client
        self._asked = {"Bucket": bucket, "Key": key}
        self._body: Any = None
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        for attempt in range(1, S3_ATTEMPTS + 1):
            try:
                data = self._opened().read(len(buffer))
            except EventonceError as error:
                raise OSError(str(error)) from error
            except Exception as error:
                if errors.kind_of(error) != "not_reached" or attempt == S3_ATTEMPTS:
                    raise OSError(f"{type(error).__name__} after {self._at} bytes") from error
                self._drop()
                continue
            buffer[: len(data)] = data
            self._at += len(data)
            return len(data)
        raise AssertionError("the last attempt returns or raises")

    def _opened(self) -> Any:
        if self._body is None:
            rest = {"Range": f"bytes={self._at}-"} if self._at else {}
            answer = self._client.call("get_object", **self._asked, **rest)
            self._asked["IfMatch"] = answer["ETag"]
            self._body = answer["Body"]
        return self._body

    def _drop(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()

    def close(self) -> None:
        self._drop()
        super().close()
