"""Captures in S3, against an emulator: listed by pages, streamed, and read on after a break."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pytest

from eventonce.aws.s3 import Bucket
from eventonce.aws.sessions import Access
from eventonce.errors import ConfigError
from eventonce.sources.files import Capture
from tests.helpers import Run
from tests.servers.aws import emulated, ministack


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with emulated(), ministack() as url:
        yield url


@pytest.fixture(scope="module")
def client(endpoint: str) -> Any:
    client = boto3.client("s3", endpoint_url=endpoint)
    place = {"LocationConstraint": "eu-central-1"}
    client.create_bucket(Bucket="captures", CreateBucketConfiguration=place)
    return client


def test_the_objects_of_a_prefix_are_read_by_key_in_every_format(
    run: Run, client: Any, endpoint: str, tmp_path: Path
) -> None:
    parquet = tmp_path / "c.parquet"
    with duckdb.connect() as database:
        database.execute(f"""COPY (SELECT '{{"a":3}}' AS event) TO '{parquet}' (FORMAT parquet)""")
    for key, body in {
        "mixed/1.jsonl.gz": gzip.compress(b'{"a":1}\n{"a":2}\n'),
        "mixed/2/c.parquet": parquet.read_bytes(),
        "mixed/3-firehose": b'{"a":4}{"a":5}',
        "mixed/README.txt": b"no events",
        "mixed/.hidden": b"no events",
        "other/1.jsonl": b'{"a":6}\n',
    }.items():
        client.put_object(Bucket="captures", Key=key, Body=body)
    capture = Capture([f"s3://captures/mixed/?endpoint={endpoint}"])
    assert list(capture) == [b'{"a":%d}' % number for number in range(1, 6)]
    assert "not read: s3://captures/mixed/README.txt" in capture.passed_over
    told = run("diagnose", f"s3://captures/mixed/?endpoint={endpoint}").err
    assert told == f"eventonce: {capture.passed_over}\n"
    assert list(Capture([f"s3://captures/other/1.jsonl?endpoint={endpoint}"])) == [b'{"a":6}']


def test_more_objects_than_a_page_are_all_read(
    client: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.aws.s3.PAGE_OBJECTS", 3)
    for number in range(8):
        client.put_object(Bucket="captures", Key=f"many/{number:04}", Body=b'{"a":1}')
    assert sum(1 for _ in Capture([f"s3://captures/many/?endpoint={endpoint}"])) == 8


def test_a_broken_stream_continues_at_the_byte_of_the_break(
    client: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import ReadTimeoutError
    from botocore.response import StreamingBody

    body = bytes(range(256)) * 20_000
    client.put_object(Bucket="captures", Key="large", Body=body)
    read, breaks = StreamingBody.read, [True, False, True, False, False, True]

    def breaking(self: Any, amt: int | None = None) -> Any:
        if breaks and breaks.pop():
            raise ReadTimeoutError(endpoint_url=endpoint)
        return read(self, amt)

    monkeypatch.setattr(StreamingBody, "read", breaking)
    with Bucket("captures", Access(endpoint=endpoint)).open("large") as stream:
        assert stream.read() == body
    assert not breaks


def test_a_missing_bucket_or_a_missing_prefix_is_named(
    client: Any, endpoint: str, run: Run
) -> None:
    result = run("diagnose", f"s3://nowhere/x?endpoint={endpoint}")
    assert (result.code, "s3://nowhere: NoSuchBucket" in result.err) == (2, True)
    with pytest.raises(ConfigError, match="s3://captures/nothing: there is no object"):
        Capture([f"s3://captures/nothing?endpoint={endpoint}"])
    assert run("filter", "s3:captures").code == 2


def test_a_capture_in_s3_has_the_same_diagnosis_as_the_file(
    client: Any, endpoint: str, run: Run, tmp_path: Path
) -> None:
    plain = tmp_path / "c.jsonl"
    run("simulate", "--events", "300", "-o", plain)
    client.put_object(Bucket="captures", Key="sim/c.jsonl", Body=plain.read_bytes())
    (expected,) = run("diagnose", plain, "--json").documents
    found = run("diagnose", f"s3://captures/sim/?endpoint={endpoint}", "--json")
    assert found.documents == [expected]
