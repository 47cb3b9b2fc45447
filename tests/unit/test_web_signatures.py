"""Signatures of webhooks, compared with the libraries of the senders and documented examples."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
import stripe

from eventonce import ConfigError, Consumer
from eventonce.web import Serve, receiver
from eventonce.web.authentication import Authenticator
from tests.unit.asking import JSON, ask
from tests.unit.endpoint import PATIENT

BODY = b'{"id": "evt_1", "type": "order.paid", "order": "gr\xc3\xbc\xc3\x9fe"}'
TEXT = "whsec_test_secret_of_an_endpoint"
OTHER = "whsec_another_secret_of_an_endpoint"
STANDARD = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW = 1_800_000_000

Headers = dict[str, str]


def from_stripe(secret: str, body: bytes, at: int) -> Headers:
    signed: Any = stripe.WebhookSignature
    signature = signed._compute_signature(f"{at}.{body.decode()}", secret)
    return {"stripe-signature": f"t={at},v0=ignored,v1={signature}"}


def svix(secret: str) -> Any:
    from svix.webhooks import Webhook  # late: it brings hundreds of models

    return Webhook(secret)


def from_svix(secret: str, body: bytes, at: int) -> Headers:
    when = datetime.fromtimestamp(at, UTC)
    signature = svix(secret).sign("msg_1", when, body.decode())
    return {"svix-id": "msg_1", "svix-timestamp": str(at), "svix-signature": signature}


def from_standard(secret: str, body: bytes, at: int) -> Headers:
    when = datetime.fromtimestamp(at, UTC)
    signature = standardwebhooks.Webhook(secret).sign("msg_1", when, body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": signature}


def from_shopify(secret: str, body: bytes, _: int) -> Headers:
    # As documented: base64 of the HMAC with the client secret over the raw body.
    digest = hmac.new(secret.encode(), body, hashlib.sha256).digest()
    return {"x-shopify-hmac-sha256": base64.b64encode(digest).decode()}


def from_github(secret: str, body: bytes, _: int) -> Headers:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"x-hub-signature-256": f"sha256={digest}"}


Sign = Callable[[str, bytes, int], Headers]
SENDERS: dict[str, tuple[str, Sign, list[str]]] = {
    "stripe": ("stripe_secrets", from_stripe, [TEXT, OTHER]),
    "svix": (
        "webhook_secrets",
        from_svix,
        [STANDARD, "whsec_" + base64.b64encode(b"x" * 24).decode()],
    ),
    "standard": (
        "webhook_secrets",
        from_standard,
        [STANDARD, "whsec_" + base64.b64encode(b"x" * 24).decode()],
    ),
    "shopify": ("shopify_secrets", from_shopify, [TEXT, OTHER]),
    "github": ("github_secrets", from_github, [TEXT, OTHER]),
}


@pytest.fixture(params=SENDERS)
def sender(request: pytest.FixtureRequest) -> tuple[str, Sign, list[str]]:
    return SENDERS[request.param]


def complaint(setting: str, secrets: list[str], headers: Mapping[str, str], body: bytes) -> str:
    authenticator = Authenticator(Serve(**{setting: secrets}))  # type: ignore[arg-type]
    assert authenticator.is_signed(headers)
    return authenticator.complaint(headers, body, NOW)


def test_a_signed_request_is_accepted_with_the_old_and_the_new_secret(
    sender: tuple[str, Sign, list[str]],
) -> None:
    setting, sign, (secret, other) = sender
    assert complaint(setting, [secret], sign(secret, BODY, NOW), BODY) == ""
    assert complaint(setting, [other, secret], sign(secret, BODY, NOW), BODY) == ""
    assert complaint(setting, [secret, other], sign(other, BODY, NOW), BODY) == ""


def test_another_body_another_secret_and_a_cut_signature_are_refused(
    sender: tuple[str, Sign, list[str]],
) -> None:
    setting, sign, (secret, other) = sender
    good = sign(secret, BODY, NOW)
    assert "matches" in complaint(setting, [secret], good, BODY + b" ")
    assert "matches" in complaint(setting, [other], good, BODY)
    for name in good:
        if "signature" in name or "hmac" in name:
            for wrong in (good[name][:-1], "", "v1,", "t=,v1=", "sha256=", "ÿ" * 40):
                assert complaint(setting, [secret], good | {name: wrong}, BODY)


@pytest.mark.parametrize("name", ["stripe", "svix", "standard"])
def test_a_timestamp_outside_the_tolerance_is_refused_in_the_past_and_in_the_future(
    name: str,
) -> None:
    setting, sign, (secret, _) = SENDERS[name]
    for off, right in ((0, True), (299, True), (-299, True), (301, False), (-301, False)):
        said = complaint(setting, [secret], sign(secret, BODY, NOW + off), BODY)
        assert (said == "") == right
        assert right or "300 seconds off" in said


@pytest.mark.parametrize("stamp", ["", "-1", "1e9", "²", "9" * 30])
def test_an_invalid_timestamp_is_refused(stamp: str) -> None:
    good = from_stripe(TEXT, BODY, NOW)["stripe-signature"]
    bad = {"stripe-signature": good.replace(f"t={NOW}", f"t={stamp}")}
    assert complaint("stripe_secrets", [TEXT], bad, BODY)
    assert complaint("stripe_secrets", [TEXT], {"stripe-signature": good.partition(",")[2]}, BODY)


def test_one_right_signature_among_the_first_few_is_enough() -> None:
    good = from_stripe(TEXT, BODY, NOW)["stripe-signature"]
    wrong = ",v1=" + "0" * 64
    early = good.replace(",v1=", wrong + ",v1=", 1)
    assert complaint("stripe_secrets", [TEXT], {"stripe-signature": early}, BODY) == ""
    late = good.replace(",v1=", wrong * 16 + ",v1=", 1)
    assert complaint("stripe_secrets", [TEXT], {"stripe-signature": late}, BODY)


def test_the_receiver_and_the_libraries_of_the_senders_agree() -> None:
    now = int(time.time())
    for body, secret in ((BODY, TEXT), (BODY + b" ", TEXT), (BODY, OTHER)):
        headers = from_stripe(TEXT, BODY, now)
        try:
            stripe.WebhookSignature.verify_header(
                body.decode(), headers["stripe-signature"], secret, tolerance=300
            )
            theirs = True
        except stripe.SignatureVerificationError:
            theirs = False
        authenticator = Authenticator(Serve(stripe_secrets=[secret]))
        assert (authenticator.complaint(headers, body, now) == "") == theirs
    for sign, verify in (
        (from_svix, svix(STANDARD).verify),
        (from_standard, standardwebhooks.Webhook(STANDARD).verify),
    ):
        verify(BODY.decode(), sign(STANDARD, BODY, now))
        authenticator = Authenticator(Serve(webhook_secrets=[STANDARD]))
        assert authenticator.complaint(sign(STANDARD, BODY, now), BODY, now) == ""


def test_the_example_in_the_documentation_of_github_is_accepted() -> None:
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"x-hub-signature-256": signature}
    secrets = ["It's a Secret to Everybody"]
    assert complaint("github_secrets", secrets, headers, b"Hello, World!") == ""


def test_the_receiver_accepts_only_signed_requests() -> None:
    now = int(time.time())
    settings = Serve(
        stripe_secrets=[TEXT],
        shopify_secrets=[OTHER],
        github_secrets=[TEXT],
        webhook_secrets=[STANDARD],
        **PATIENT,
    )
    seen: list[Mapping[str, str]] = []
    consumer = Consumer("memory:", rules="auto", handler=lambda job: seen.append(job.event.headers))
    app = receiver(consumer, settings)
    told: list[str] = []
    for number, (setting, sign, secrets) in enumerate(SENDERS.values()):
        body = BODY.replace(b"evt_1", b"evt_%d" % number)
        secret = OTHER if setting == "shopify_secrets" else secrets[0]
        ids = {"x-shopify-event-id": str(number), "x-shopify-topic": "orders/paid"}
        named = {} if setting in ("webhook_secrets", "stripe_secrets") else ids
        headers = JSON | named | sign(secret, body, now)
        accepted = ask(app, body, headers=headers)
        assert accepted.status == 200, setting
        told += accepted.statuses
        assert ask(app, body + b" ", headers=headers).status == 401
    assert ask(app, BODY, headers=JSON).status == 401
    challenge = ask(app, BODY, headers=JSON).headers["www-authenticate"]
    assert challenge == "StandardWebhooks, Stripe, Shopify, GitHub"
    # The two libraries for standard webhooks signed one message id.
    assert told == ["done", "done", "duplicate", "done", "done"]
    assert len(seen) == 4
    assert not [name for headers in seen for name in headers if "sign" in name or "hmac" in name]


def test_an_unsigned_id_beside_the_signed_id_of_svix_is_no_key() -> None:
    consumer = Consumer("memory:", rules="standard-webhooks", handler=lambda _: None)
    app = receiver(consumer, Serve(webhook_secrets=[STANDARD], **PATIENT))
    headers = JSON | from_svix(STANDARD, BODY, int(time.time()))
    assert ask(app, BODY, headers=headers).statuses == ["done"]
    assert ask(app, BODY, headers=headers | {"webhook-id": "forged"}).statuses == ["duplicate"]


@pytest.mark.parametrize("setting", ["stripe_secrets", "shopify_secrets", "github_secrets"])
@pytest.mark.parametrize("secret", ["", "   ", "short"])
def test_a_secret_that_is_too_short_is_refused_and_not_repeated(setting: str, secret: str) -> None:
    with pytest.raises(ConfigError, match=setting) as refused:
        Authenticator(Serve(**{setting: [secret]}))  # type: ignore[arg-type]
    assert "short" not in str(refused.value)
