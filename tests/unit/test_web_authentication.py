"""The authentication of the receiver: accepted requests, and refusals that reveal no secret."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventonce import ConfigError, Consumer, Rule
from eventonce.config import load
from eventonce.web import Serve, receiver
from eventonce.web.authentication import Authenticator
from tests.unit.asking import JSON, ask
from tests.unit.endpoint import PATIENT

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another secret of twenty-four").decode()
BODY = b'{"detail-type":"call","id":"1","detail":{"call":"a"}}'


def signed(secret: str, body: bytes, *, at: float, id: str = "msg_1") -> dict[str, str]:
    """The headers of Standard Webhooks, made with nothing but `hmac`."""
    stamp = str(int(at))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{id}.{stamp}.".encode() + body
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{signature}",
    }


def basic(pair: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


class Endpoint:
    def __init__(self, settings: Serve) -> None:
        self.ran: list[str] = []
        rule = Rule(name="any", match="*", key=["headers.n?", "detail.call"])
        self.consumer = Consumer("memory:", rules=rule, handler=lambda _: self.ran.append("ran"))
        self.app = receiver(self.consumer, settings)

    def status(self, headers: Mapping[str, str], body: bytes = BODY) -> int:
        return ask(self.app, body, headers={**JSON, **headers}).status


@pytest.fixture
def made() -> Iterator[Any]:
    endpoints: list[Endpoint] = []

    def make(**settings: Any) -> Endpoint:
        endpoints.append(Endpoint(Serve(**settings, **PATIENT)))
        return endpoints[-1]

    yield make
    for endpoint in endpoints:
        endpoint.consumer.close()


def test_each_of_several_api_keys_is_accepted_and_no_other_value(made: Any) -> None:
    endpoint = made(api_keys=["new-key", "old-key"])
    assert endpoint.status({"x-api-key": "new-key"}) == 200
    assert endpoint.status({"X-API-Key": "old-key"}) == 200
    for headers in (
        {},
        {"x-api-key": ""},
        {"x-api-key": "new-ke"},
        {"x-api-key": "new-key,old-key"},
        {"authorization": "new-key"},
        {"other": "new-key"},
    ):
        assert endpoint.status(headers) == 401
    assert endpoint.ran == ["ran"]
    assert list(endpoint.consumer.letters()) == []


def test_a_line_end_after_a_configured_api_key_is_ignored(made: Any) -> None:
    endpoint = made(api_keys=["key\n"])
    assert endpoint.status({"x-api-key": "key"}) == 200


def test_the_header_of_the_key_may_have_another_name(made: Any) -> None:
    endpoint = made(api_keys=["key"], api_key_header="X-Our-Key")
    assert endpoint.status({"x-our-key": "key"}) == 200
    assert endpoint.status({"x-api-key": "key"}) == 401


def test_basic_accepts_each_user_only_with_the_password_of_that_user(made: Any) -> None:
    endpoint = made(users={"a1": "one:two", "a2": "drei€"})
    assert endpoint.status(basic("a1:one:two")) == 200
    assert endpoint.status(basic("a2:drei€")) == 200
    for headers in (
        basic("a1:drei€"),
        basic("a1:"),
        basic(":"),
        basic("a1"),
        {"authorization": "Basic"},
        {"authorization": "Basic !!!"},
        {"authorization": "Bearer YW5uOm9uZTp0d28="},
    ):
        assert endpoint.status(headers) == 401


def test_a_refusal_names_the_accepted_credentials_and_reveals_no_secret(made: Any) -> None:
    endpoint = made(api_keys=["key-1"], users={"a1": "pw-1"}, webhook_secrets=[SECRET])
    answer = ask(endpoint.app, BODY, headers={**JSON, "x-api-key": "guess"})
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == (
        'ApiKey header="x-api-key", Basic realm="eventonce", charset="UTF-8", StandardWebhooks'
    )
    for secret in ("key-1", "a1", "pw-1", SECRET, "guess"):
        assert secret not in str(answer)


def test_several_kinds_of_credentials_are_accepted_together(made: Any) -> None:
    endpoint = made(api_keys=["key"], users={"a1": "pw"}, webhook_secrets=[SECRET])
    right = [{"x-api-key": "key"}, basic("a1:pw"), signed(SECRET, BODY, at=time.time())]
    assert [endpoint.status(headers) for headers in right] == [200, 200, 200]
    # One right credential is enough, whatever else the request has.
    assert endpoint.status({"x-api-key": "wrong", **basic("a1:pw")}) == 200
    assert endpoint.status({"x-api-key": "wrong", **signed(OTHER, BODY, at=time.time())}) == 401


def test_the_published_vector_of_standard_webhooks_is_accepted() -> None:
    authenticator = Authenticator(Serve(webhook_secrets=[SECRET]))
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert authenticator.complaint(headers, b'{"test": 2432232314}', 1614265330) == ""
    assert "matches" in authenticator.complaint(headers, b'{"test": 2432232315}', 1614265330)


def test_a_signature_is_valid_only_for_its_body_its_id_and_its_time() -> None:
    authenticator = Authenticator(Serve(webhook_secrets=[SECRET]))
    now = 1_700_000_000.0
    right = signed(SECRET, BODY, at=now)
    assert authenticator.complaint(right, BODY, now) == ""
    for changed, body in [
        ({}, BODY + b" "),
        ({"webhook-id": "msg_2"}, BODY),
        ({"webhook-timestamp": str(int(now) + 1)}, BODY),
        ({"webhook-timestamp": f"{int(now)}.0"}, BODY),
        ({"webhook-timestamp": "9" * 40}, BODY),
        ({"webhook-timestamp": ""}, BODY),
        ({"webhook-id": ""}, BODY),
        ({"webhook-signature": ""}, BODY),
        ({"webhook-signature": "v1,"}, BODY),
        ({"webhook-signature": right["webhook-signature"].removeprefix("v1,")}, BODY),
        ({"webhook-signature": right["webhook-signature"].replace("v1,", "v1a,")}, BODY),
        ({"webhook-signature": "v1,é"}, BODY),
    ]:
        assert authenticator.complaint({**right, **changed}, body, now) != "", changed


def test_a_signature_is_refused_beyond_five_minutes_or_the_tolerance_that_is_set() -> None:
    now = 1_700_000_000.0
    authenticator = Authenticator(Serve(webhook_secrets=[SECRET]))
    for off, fine in [(-299, True), (299, True), (-301, False), (301, False)]:
        complaint = authenticator.complaint(signed(SECRET, BODY, at=now + off), BODY, now)
        assert (complaint == "") is fine
        assert fine or "more than 300 seconds off" in complaint
    strict = Authenticator(Serve(webhook_secrets=[SECRET], webhook_tolerance="10s"))
    assert strict.complaint(signed(SECRET, BODY, at=now - 11), BODY, now) != ""


def test_secrets_can_be_rotated_at_the_receiver_and_at_the_sender() -> None:
    now = 1_700_000_000.0
    both = Authenticator(Serve(webhook_secrets=[OTHER, SECRET]))
    for secret in (SECRET, OTHER):
        assert both.complaint(signed(secret, BODY, at=now), BODY, now) == ""
    one = Authenticator(Serve(webhook_secrets=[SECRET]))
    old, new = (signed(secret, BODY, at=now) for secret in (SECRET, OTHER))
    sent = {
        **old,
        "webhook-signature": f"{new['webhook-signature']} v1a,x {old['webhook-signature']}",
    }
    assert one.complaint(sent, BODY, now) == ""
    assert one.complaint(new, BODY, now) != ""


def test_a_secret_may_lack_its_padding_and_its_prefix() -> None:
    now = 1_700_000_000.0
    headers = signed(OTHER, BODY, at=now)
    for text in (OTHER, OTHER.removeprefix("whsec_"), OTHER.rstrip("=")):
        assert Authenticator(Serve(webhook_secrets=[text])).complaint(headers, BODY, now) == ""


def test_credentials_are_compared_in_constant_time(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def spy(first: bytes, second: bytes) -> bool:
        compared.append((len(first), len(second)))
        return compare(first, second)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    endpoint = made(api_keys=["key-1", "key-2"], webhook_secrets=[SECRET, OTHER])
    assert endpoint.status({"x-api-key": "key-1"}) == 200
    # Each key is compared although the first fits, and as a digest, which hides its length.
    assert compared[:2] == [(64, 64), (64, 64)]
    compared.clear()
    assert endpoint.status(signed(SECRET, BODY, at=time.time())) == 200
    assert compared.count((44, 44)) == 2


def test_the_body_of_an_unauthenticated_request_is_not_read(made: Any) -> None:
    endpoint = made(api_keys=["key"], webhook_secrets=[SECRET])

    async def endless() -> Any:
        raise AssertionError("it was read")
        yield b""

    for headers in ({}, {"x-api-key": "wrong"}):
        answer = ask(endpoint.app, endless(), headers={**JSON, **headers})
        assert answer.status == 401


def test_a_receiver_without_authentication_needs_anyone_may_send_events() -> None:
    with Consumer("memory:", handler=lambda _: None) as consumer:
        with pytest.raises(ConfigError, match="no authentication is set"):
            receiver(consumer)
        receiver(consumer, Serve(anyone_may_send_events=True))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"api_keys": [""]}, "api_keys holds an empty text"),
        ({"api_keys": ["fine", " "]}, "api_keys holds an empty text"),
        ({"users": {"a1": ""}}, "users holds an empty text"),
        ({"webhook_secrets": ["whsec_"]}, "not a secret"),
        ({"webhook_secrets": ["whsec_hunter2!"]}, "not a secret"),
        ({"webhook_secrets": ["hunter2hunter2"]}, "16 bytes or more"),
        ({"users": {"a1:a2": "hunter2"}}, "a user name of Basic has no colon"),
        ({"api_keys": ["k"], "api_key_header": ""}, "not a name of a header"),
        ({"api_keys": ["k"], "api_key_header": 'x"y'}, "not a name of a header"),
        ({"api_keys": ["k"], "api_key_header": "schlüssel"}, "not a name of a header"),
        ({"api_keys": ["k"], "webhook_tolerance": "soon"}, "webhook_tolerance"),
        ({"api_keys": ["k"], "body_timeout": 0}, "body_timeout must be greater than 0"),
        ({"api_keys": ["k"], "concurrency": 0}, "concurrency is 0"),
    ],
)
def test_impossible_settings_are_refused_without_their_values_in_the_error(
    settings: dict[str, Any], says: str
) -> None:
    with Consumer("memory:", handler=lambda _: None) as consumer:
        with pytest.raises(ConfigError, match=says) as refused:
            receiver(consumer, Serve(**settings))
        assert "hunter2" not in str(refused.value)


def test_secrets_of_the_file_come_from_the_environment_and_are_not_in_the_repr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_KEY", "hunter2")
    file = tmp_path / "eventonce.toml"
    file.write_text('[serve]\napi_keys = ["${OUR_KEY}"]\nwebhook_tolerance = "1m"\n')
    said = load(file)
    assert said.serve.api_keys == ["hunter2"]
    assert "hunter2" not in repr(said)
    assert msgspec.structs.asdict(said.serve)["webhook_tolerance"] == "1m"
