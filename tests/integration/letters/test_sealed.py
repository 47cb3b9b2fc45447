"""Sealed dead letters in a queue, and keys of KMS, on an emulator of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from eventonce import Consumer
from eventonce.errors import ConfigError, EventonceError, SealedError, StoreUnavailable
from eventonce.privacy import Sealer
from eventonce.privacy.keys import KmsKey
from tests.helpers import Run, call, statuses
from tests.integration.letters.queues import CALL, TOML, Made, Make, effects, never
from tests.servers import free_port

SECRET = "+49 30 901820"


@pytest.fixture(scope="module")
def kms(endpoint: str) -> Any:
    return boto3.client("kms", endpoint_url=endpoint)


@pytest.fixture
def key(kms: Any, endpoint: str) -> str:
    """The URI of a new key."""
    return f"kms://{kms.create_key()['KeyMetadata']['KeyId']}?endpoint={endpoint}"


def given_up(queue: Made, *keys: str, count: int = 3) -> None:
    with Consumer(
        "memory:",
        name="crm",
        rules=[CALL],
        handler=never,
        letters=queue.uri,
        sealing_keys=keys,
    ) as consumer:
        outcomes = consumer.process([call(it, caller=SECRET) for it in range(count)])
        assert set(statuses(outcomes)) == {"dead"}


def configured(*keys: str) -> None:
    Path("eventonce.toml").write_text(
        f'{TOML}[privacy]\nsealing_keys = {list(keys)}\n[[sink]]\nto = "file:effects.jsonl"\n'
    )


def test_a_queue_holds_sealed_dead_letters_which_are_read_and_run_with_the_key(
    make: Make, key: str, run: Run, existing_store: None
) -> None:
    queue = make()
    given_up(queue, key)
    bodies = "".join(message["Body"] + str(message) for message in queue.visible())
    assert "30 901820" not in bodies
    assert set(queue.values_of("status")) == {"dead"}
    (reason,) = set(queue.values_of("reason"))
    assert reason.startswith("sealed with the key 'arn:aws:kms:")
    redriven = run("redrive", "--from", queue.uri)
    assert redriven.code == 1, "there is no key"
    listed = run("list", "--from", queue.uri, "--json").documents
    assert len(listed) == 3
    assert all("sealed with the key 'arn:aws:kms:" in one["reason"] for one in listed)
    configured(key)
    shown = run("show", "--from", queue.uri, "--json").documents
    assert [one["event"]["detail"]["caller"] for one in shown] == [SECRET] * 3
    assert run("redrive", "--from", queue.uri).code == 0
    assert sorted(effects()) == [0, 1, 2]
    assert queue.visible() == []


def test_a_dead_letter_too_large_for_the_queue_is_sealed_in_the_store(make: Make, key: str) -> None:
    queue = make(MaximumMessageSize="1024")
    store = "memory:"
    with Consumer(
        store, name="crm", rules=[CALL], handler=never, letters=queue.uri, sealing_keys=[key]
    ) as consumer:
        assert statuses(consumer.process([call(1, caller=SECRET * 200)])) == ["dead"]
        (letter,) = consumer.letters()
        assert "no customer for id-1; kept in the store, not in" in letter.reason
        (kept,) = consumer.admin.inner.letters()  # type: ignore[attr-defined]
        assert SECRET.encode() not in kept.event


def test_the_key_of_an_alias_may_change_if_the_old_key_is_named_too(
    kms: Any, endpoint: str
) -> None:
    old, new = (kms.create_key()["KeyMetadata"]["KeyId"] for _ in range(2))
    kms.create_alias(AliasName="alias/eventonce", TargetKeyId=old)
    alias = f"kms://alias/eventonce?endpoint={endpoint}"
    sealed = Sealer([alias]).seal(b"content", b"here")
    assert Sealer([alias]).open(sealed, b"here") == b"content"
    kms.update_alias(AliasName="alias/eventonce", TargetKeyId=new)
    with pytest.raises(SealedError, match=f"sealed with the key 'arn:aws:kms:.*{old}'"):
        Sealer([alias]).open(sealed, b"here")
    both = Sealer([alias, f"kms://{old}?endpoint={endpoint}"])
    assert both.open(sealed, b"here") == b"content"
    assert both.open(both.seal(b"more", b"here"), b"here") == b"more"


def test_a_missing_or_disabled_key_seals_and_opens_nothing(
    kms: Any, key: str, endpoint: str
) -> None:
    with pytest.raises(StoreUnavailable, match="there is no such key for these credentials"):
        Sealer([f"kms://alias/none?endpoint={endpoint}"]).seal(b"", b"")
    sealed = Sealer([key]).seal(b"", b"")
    kms.disable_key(KeyId=key.removeprefix("kms://").partition("?")[0])
    with pytest.raises(EventonceError, match="DisabledException"):
        Sealer([key]).open(sealed, b"")


def test_a_missing_right_is_named(key: str) -> None:
    denied = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "Decrypt")
    told = KmsKey(key)._explain(denied)
    assert isinstance(told, ConfigError)
    assert "Grant the role kms:GenerateDataKey and kms:Decrypt on this key" in str(told)


def test_kms_that_does_not_answer_is_asked_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = f"kms://a?region=eu-central-1&endpoint=http://127.0.0.1:{free_port()}"
    sealer = Sealer([away])
    with pytest.raises(StoreUnavailable, match=r"kms://a: not reached") as first:
        sealer.seal(b"", b"")
    with pytest.raises(StoreUnavailable) as second:
        sealer.seal(b"", b"")
    assert str(second.value) == str(first.value)
    assert first.value.__cause__ is not None
    assert second.value.__cause__ is None, "nobody was asked"
    monkeypatch.setattr("eventonce.privacy.keys.KMS_PAUSE", 0)
    sealer = Sealer([away])
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as asked:
            sealer.seal(b"", b"")
        assert asked.value.__cause__ is not None
