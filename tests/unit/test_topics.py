"""Genesys topic names back to their templates."""

from __future__ import annotations

import pytest

from eventonce.envelope.topics import LONGEST_TOPIC, template

USER = "9ed7d9f6-0c59-4360-ac54-40dd35eb9c2f"


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (f"v2.users.{USER}.presence", "v2.users.{id}.presence"),
        ("v2.users.test-user.routingStatus", "v2.users.{id}.routingStatus"),
        (
            "v2.audits.entitytype.OAuthClient.entityid.abc",
            "v2.audits.entitytype.{id}.entityid.{id}",
        ),
        ("v2.quality.evaluations", "v2.quality.evaluations"),
        ("v2.taskmanagement.workitems.w-1", "v2.taskmanagement.workitems.{id}"),
        ("v2.taskmanagement.workitems.users.u-1", "v2.taskmanagement.workitems.users.{id}"),
        ("v2.users.conversations.conversations", "v2.users.{id}.conversations"),
        (
            "v2.users.u.conversations.c.recordings.r",
            "v2.users.{id}.conversations.{id}.recordings.{id}",
        ),
        ("v2.system.token_revoked.t-1", "v2.system.token_revoked.{id}"),
        ("v2.system.socket_closing", "v2.system.socket_closing"),
        ("v2.flows.outcomes.o-1", "v2.flows.outcomes.{id}"),
        ("v2.flows.f-1", "v2.flows.{id}"),
        ("v2.users.{id}.presence", "v2.users.{id}.presence"),
        (f"v2.new.things.{USER}.made", "v2.new.things.{id}.made"),
        ("v2.new.things.4711.made", "v2.new.things.{id}.made"),
        ("v2.new.things", "v2.new.things"),
        ("channel.metadata", "channel.metadata"),
        ("", ""),
        ("...", "..."),
    ],
)
def test_the_ids_of_a_topic_become_placeholders_and_its_words_stay(
    topic: str, expected: str
) -> None:
    assert template(topic) == expected
    assert template(expected) == expected


def test_a_text_that_is_too_long_for_a_topic_stays_unchanged() -> None:
    assert template("4711." * LONGEST_TOPIC) == "4711." * LONGEST_TOPIC
