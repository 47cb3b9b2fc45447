"""SNS over HTTPS into `eventonce serve`, a process: the handshake, the signature, copies, and
messages of strangers. `tests.servers.sns` replaces SNS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.helpers import until
from tests.servers.receiver import Answered, Receiving, receiving
from tests.servers.sns import (
    CERTIFICATE,
    HOST,
    SIGNER,
    TOPIC,
    Page,
    Sns,
    a_key,
    certificate,
    headers,
    message,
    signed,
    sns_host,
    stamp,
)

HANDLER = """
def handle(job):
    with open("effects", "a") as effects:
        effects.write(str(job.event.detail.get("call")) + "\\n")
"""
SETTINGS = f"""
store = "sqlite:///site.db"
name = "site"
presets = []
rules = ["./rules.toml"]
[[sink]]
to = "handlers:handle"
[serve]
sns_topics = ["{TOPIC}"]
answer_within = "1m"
"""
RULES = """
[[rule]]
name = "call"
match = { type = "call" }
key = ["id"]
[[rule]]
name = "named"
match = { type = "named" }
key = ["headers.x-amz-sns-message-id"]
"""


class Place(NamedTuple):
    """A receiver, the folder where it runs, and the server that replaces SNS."""

    serving: Receiving
    folder: Path
    sns: Sns

    def send(self, sent: dict[str, Any], **more: str) -> Answered:
        return self.serving.ask(sent, headers={**headers(sent), **more})

    def refused(self, sent: dict[str, Any], **more: str) -> str:
        """The reason why this message is refused."""
        answer = self.send(sent, **more)
        assert answer.status == 401
        assert "AmazonSNS" in answer.headers["www-authenticate"]
        return str(answer.body["reason"])

    @property
    def effects(self) -> list[str]:
        file = self.folder / "effects"
        return file.read_text().split() if file.exists() else []

    @property
    def log(self) -> str:
        return self.serving.log.read_text()


def place(folder: Path, settings: str = SETTINGS) -> Iterator[Place]:
    (folder / "handlers.py").write_text(HANDLER)
    (folder / "rules.toml").write_text(RULES)
    with sns_host(folder) as sns, receiving(folder, settings, "-v", env=sns.env) as serving:
        yield Place(serving, folder, sns)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from place(tmp_path_factory.mktemp("site"))


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Place]:
    """A new receiver, whose log is empty and which has fetched nothing."""
    yield from place(tmp_path)


def statuses(answer: Answered) -> list[str]:
    return [told["status"] for told in answer.body["events"]]


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("subject", [None, "A call", ""])
def test_a_notification_that_sns_signed_takes_effect_once(
    site: Place, version: str, subject: str | None
) -> None:
    sent = message(SignatureVersion=version, Subject=subject)
    first, again = site.send(sent), site.send(sent)
    assert (first.status, statuses(first)) == (200, ["done"])
    assert (again.status, statuses(again)) == (200, ["duplicate"])
    # The id that SNS keeps when it sends again is the event's transport id.
    assert first.body["events"][0]["id"] == sent["MessageId"]
    assert site.effects.count(json.loads(sent["Message"])["detail"]["call"]) == 1


def test_a_message_of_several_lines_and_of_any_script_is_accepted(site: Place) -> None:
    event = {"detail-type": "call", "detail": {"call": "\u260e\U0001f4de-é"}}
    text = json.dumps(event, indent=2, ensure_ascii=False) + "\n\n"
    assert statuses(site.send(message(Message=text))) == ["done"]


def test_a_message_that_is_no_event_is_a_dead_letter(site: Place) -> None:
    answer = site.send(message(Message="Hello\nMessageId\nworld"))
    assert (answer.status, statuses(answer)) == (400, ["invalid"])


def test_the_certificate_is_fetched_once(quiet: Place) -> None:
    for _ in range(3):
        assert quiet.send(message()).status == 200
    assert quiet.sns.asked == [CERTIFICATE.removeprefix(f"https://{HOST}")]


@pytest.mark.parametrize(
    "field", ["Message", "MessageId", "Subject", "Timestamp", "Signature", "TopicArn"]
)
def test_a_field_that_was_changed_is_refused(site: Place, field: str) -> None:
    sent = message(Subject="A call")
    other = message(Subject="Another call", Timestamp=stamp(ago=60))
    ran = site.effects
    site.refused({**sent, field: other[field] if field != "TopicArn" else TOPIC + "s"})
    assert site.effects == ran


def test_a_signature_of_the_other_version_or_of_another_key_is_refused(site: Place) -> None:
    for given, told in (("1", "2"), ("2", "1")):
        sent = {**message(SignatureVersion=given), "SignatureVersion": told}
        assert "does not match" in site.refused(sent)
    assert "does not match" in site.refused(signed(message(), a_key()))
    assert "version 1 or 2" in site.refused(message(SignatureVersion="3"))


def test_unsigned_fields_and_headers_of_a_message_are_ignored(site: Place) -> None:
    ran = site.effects
    event = {"detail-type": "call", "id": "forged", "detail": {"call": "forged"}}
    # Carriers that eventonce looks for first, unsigned, beside the signed notification.
    sent = message()
    answer = site.send({**sent, "Records": [event], "body": event, "messageId": "1", **event})
    assert statuses(answer) == ["done"]
    assert site.effects == [*ran, json.loads(sent["Message"])["detail"]["call"]]
    # Unsigned headers with the type or the id of an event.
    sent = message(Message='{"detail-type": "named", "id": "own", "detail": {}}')
    told = {"ce-type": "call", "ce-id": "forged", "x-amz-sns-message-id": "forged"}
    first, again = site.send(sent), site.send(sent, **told)
    assert (statuses(first), statuses(again)) == (["done"], ["duplicate"])
    # The first of two fields with the same name.
    sent = message()
    raw = json.dumps(sent).encode()
    twice = b'{"Message": %s, ' % json.dumps(json.dumps(event)).encode() + raw[1:]
    answer = site.serving.ask(twice, headers=headers(sent))
    assert answer.status == 401 or answer.body["events"][0]["id"] == sent["MessageId"]
    assert "forged" not in site.effects


def test_lines_moved_from_one_field_to_another_are_refused(site: Place) -> None:
    """The signature is over lines, so it is valid for both messages."""
    inner = json.dumps({"detail-type": "call", "detail": {"call": "moved"}})
    sent = message(Message=f"{inner}\nMessageId\nforged")
    moved = {**sent, "Message": inner, "MessageId": f"forged\nMessageId\n{sent['MessageId']}"}
    named = {"x-amz-sns-message-id": "forged"}
    assert "several lines" in site.refused(moved, **named)
    assert "moved" not in site.effects


def test_a_signed_message_of_another_topic_is_refused(site: Place) -> None:
    for topic in (TOPIC + "-2", TOPIC.replace("1234", "9999"), TOPIC.replace("eu-", "us-"), ""):
        assert "sns_topics" in site.refused(message(TopicArn=topic))


def test_a_message_with_a_timestamp_too_old_or_in_the_future_is_refused(site: Place) -> None:
    for stamped in (stamp(ago=2 * 86_400), stamp(ago=-2 * 86_400), "yesterday", "1700000000"):
        assert "Timestamp" in site.refused(message(Timestamp=stamped))
    # SNS retries for an hour.
    assert site.send(message(Timestamp=stamp(ago=2 * 3600))).status == 200


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/SimpleNotificationService-0.pem",
        CERTIFICATE.replace("https:", "http:"),
        CERTIFICATE.replace("eu-central-1", "us-east-1"),
        CERTIFICATE.replace("eu-central-1", "s3-eu-central-1"),
        CERTIFICATE.replace(HOST, f"{HOST}.example.com"),
        CERTIFICATE.replace(HOST, f"{HOST}:8443"),
        CERTIFICATE.replace(HOST, f"{HOST}@example.com"),
        CERTIFICATE.replace(HOST, f"example.com\\@{HOST}"),
        CERTIFICATE.replace(".pem", ".pem.html"),
        CERTIFICATE.replace(".pem", ".html"),
        f"https://{HOST}/?Action=Publish&x=.pem",
        f"https://{HOST}/a/../b.pem",
        CERTIFICATE + "\n",
        "file:///etc/passwd.pem",
    ],
)
def test_a_certificate_url_outside_sns_is_refused_and_not_fetched(site: Place, url: str) -> None:
    tunnels = len(site.sns.tunnels)
    assert "SigningCertURL" in site.refused(message(SigningCertURL=url))
    assert len(site.sns.tunnels) == tunnels


@pytest.mark.parametrize("days", [(-3, -1), (1, 3)])
def test_a_certificate_that_is_not_valid_now_is_refused(site: Place, days: tuple[int, int]) -> None:
    url = site.sns.page(f"valid{days[0]}", Page(certificate(SIGNER, days=days)))
    assert "not valid now" in site.refused(message(SigningCertURL=url))


ELSEWHERE = (("Location", CERTIFICATE),)


@pytest.mark.parametrize(
    "page",
    [
        Page(certificate(SIGNER) + b"\n" * (1 << 16)),
        Page(certificate(SIGNER), 302, ELSEWHERE),
        Page(certificate(SIGNER), 301, (("Location", "https://example.com/a.pem"),)),
        Page(certificate(SIGNER), 500),
        Page(certificate(SIGNER), 204),
        Page(b"<html>a proxy's page</html>"),
        Page(),
    ],
    ids=["oversized", "redirect", "redirect-elsewhere", "away", "no-content", "page", "empty"],
)
def test_without_the_certificate_a_message_is_answered_503_and_accepted_later(
    site: Place, page: Page, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    url, ran = site.sns.page(f"un-{name}", page), site.effects
    sent = message(SigningCertURL=url)
    answer = site.send(sent)
    assert (answer.status, answer.body["reason"]) == (
        503,
        "the signing certificate could not be fetched",
    )
    assert site.effects == ran
    assert {*site.sns.tunnels} == {f"{HOST}:443"}
    # No failed answer is kept: the next attempt finds the certificate.
    site.sns.page(f"un-{name}", Page(certificate(SIGNER)))
    assert statuses(site.send(sent)) == ["done"]


def test_a_subscription_to_an_allowed_topic_is_confirmed(quiet: Place) -> None:
    for version in ("1", "2"):
        url = quiet.sns.subscribing(f"token{version}")
        asked = message(
            "SubscriptionConfirmation",
            Message=f"You have chosen to subscribe to the topic {TOPIC}.\nTo confirm, visit",
            SubscribeURL=url,
            Token=f"token{version}",
            SignatureVersion=version,
        )
        answer = quiet.send(asked)
        assert (answer.status, answer.body["events"]) == (200, [])
        assert quiet.sns.asked[-1] == url.removeprefix(f"https://{HOST}")
    until(lambda: f"the subscription to {TOPIC} is confirmed" in quiet.log)
    assert quiet.effects == []
    assert "token1" not in quiet.log


def test_a_subscription_to_another_topic_is_refused_and_logged_and_nothing_is_fetched(
    quiet: Place,
) -> None:
    topic = "arn:aws:sns:eu-central-1:666666666666:theirs"
    url = quiet.sns.subscribing("theirs", topic=topic)
    asked = message("SubscriptionConfirmation", TopicArn=topic, SubscribeURL=url, Token="theirs")
    assert "sns_topics" in quiet.refused(asked)
    assert quiet.sns.tunnels == []
    until(lambda: f"a message of topic {topic!r} is refused" in quiet.log)


def test_a_subscription_whose_signature_does_not_match_is_not_confirmed(site: Place) -> None:
    url = site.sns.subscribing("unsigned")
    asked = message("SubscriptionConfirmation", SubscribeURL=url, Token="unsigned")
    for field, value in (("SubscribeURL", url + "&x=1"), ("Token", "other"), ("Message", "other")):
        assert "does not match" in site.refused({**asked, field: value})
    # A type that only the unsigned header has is refused, too.
    told = {"x-amz-sns-message-type": "SubscriptionConfirmation"}
    assert "differs from the Type" in site.refused({**message(), "SubscribeURL": url}, **told)
    assert not [path for path in site.sns.asked if "unsigned" in path]


def test_a_signed_subscribe_url_outside_sns_is_not_visited(site: Place) -> None:
    tunnels = len(site.sns.tunnels)
    for url in ("https://example.com/", "http://169.254.169.254/latest", f"https://{HOST}@x.com/"):
        asked = message("SubscriptionConfirmation", SubscribeURL=url, Token="t")
        assert "SubscribeURL" in site.refused(asked)
    assert {*site.sns.tunnels[tunnels:]} <= {f"{HOST}:443"}


@pytest.mark.parametrize(
    "page",
    [Page(b"Welcome"), Page(status=500), Page(status=302, headers=(("Location", "/"),))],
    ids=["page", "away", "redirect"],
)
def test_a_failed_confirmation_is_answered_503_and_succeeds_later(
    site: Place, page: Page, request: pytest.FixtureRequest
) -> None:
    token = f"late-{request.node.callspec.id}"
    url = site.sns.subscribing(token, page)
    asked = message("SubscriptionConfirmation", SubscribeURL=url, Token=token)
    assert site.send(asked).status == 503
    site.sns.subscribing(token)
    assert site.send(asked).status == 200


def test_the_end_of_a_subscription_is_logged_and_not_undone(quiet: Place) -> None:
    url = quiet.sns.subscribing("again")
    told = message("UnsubscribeConfirmation", SubscribeURL=url, Token="again")
    assert "does not match" in quiet.refused({**told, "Token": "other"})
    answer = quiet.send(told)
    assert (answer.status, answer.body["events"]) == (200, [])
    until(lambda: f"the subscription to {TOPIC} has ended" in quiet.log)
    assert not [path for path in quiet.sns.asked if "again" in path]


def test_raw_delivery_carries_no_signature_and_is_refused(site: Place) -> None:
    sent = message()
    raw = {**headers(sent), "x-amz-sns-rawdelivery": "true"}
    answer = site.serving.ask(sent["Message"].encode(), headers=raw)
    assert answer.status == 401
    assert "raw message delivery has no signature" in answer.body["reason"]


def test_with_basic_authentication_raw_messages_are_accepted_and_handshakes_still_verified(
    tmp_path: Path,
) -> None:
    for quiet in place(tmp_path, SETTINGS + '[serve.users]\nsns = "a password"\n'):
        basic = {"authorization": "Basic c25zOmEgcGFzc3dvcmQ="}
        sent = message()
        raw = {**headers(sent), "x-amz-sns-rawdelivery": "true", **basic}
        event = {"detail-type": "call", "id": "raw", "detail": {"call": "raw"}}
        assert statuses(quiet.serving.ask(event, headers=raw)) == ["done"]
        url = quiet.sns.subscribing("basic")
        asked = message("SubscriptionConfirmation", SubscribeURL=url, Token="basic")
        assert "does not match" in quiet.refused({**asked, "Token": "other"}, **basic)
        assert quiet.send(asked, **basic).status == 200
        assert [path for path in quiet.sns.asked if "basic" in path]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"nonsense", b'{"Type": []}', b'{"Type": "Notification"}', b"[" * 100_000],
    ids=["empty", "list", "nonsense", "odd-type", "unsigned", "deep"],
)
def test_a_body_that_is_no_message_is_refused(site: Place, body: bytes) -> None:
    answer = site.serving.ask(body, headers=headers(message()))
    assert answer.status == 401
