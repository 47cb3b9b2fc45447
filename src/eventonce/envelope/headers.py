"""HTTP headers that stay with an event: a list of allowed ones, because secrets can have any name.

A dead letter keeps these headers, so that a redrive finds the same rule and the same key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from eventonce.errors import ConfigError
from eventonce.types import NO_HEADERS

SNS_TYPE: Final = "x-amz-sns-message-type"
"""The header that every request of SNS has."""

KEPT: Final = frozenset(
    (
        "content-type",
        "idempotency-key",
        # Standard Webhooks, and Svix under its older names
        "webhook-id",
        "svix-id",
        # GitHub, GitLab, Bitbucket, Linear
        "x-github-delivery",
        "x-github-event",
        "x-github-hook-id",
        "x-gitlab-event",
        "x-gitlab-event-uuid",
        "x-gitlab-webhook-uuid",
        "x-event-key",
        "x-hook-uuid",
        "x-request-uuid",
        "linear-delivery",
        "linear-event",
        # Shopify, PayPal, Twilio, Zendesk
        "x-shopify-api-version",
        "x-shopify-event-id",
        "x-shopify-shop-domain",
        "x-shopify-topic",
        "x-shopify-triggered-at",
        "x-shopify-webhook-id",
        "paypal-transmission-id",
        "i-twilio-idempotency-token",
        "x-zendesk-account-id",
        "x-zendesk-webhook-id",
        "x-zendesk-webhook-invocation-id",
        # SNS
        "x-amz-sns-message-id",
        SNS_TYPE,
        "x-amz-sns-topic-arn",
    )
)
"""Delivery ids, types of events, and the type of the body, by which rules and people tell events
apart. None of these headers is a credential."""

ATTRIBUTE: Final = "ce-"
"""The beginning of a header that is an attribute of a CloudEvent."""

NEVER_KEPT: Final = frozenset(("authorization", "cookie", "proxy-authorization"))
"""Credentials by definition: no rule and no option keeps them."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def kept_headers(
    headers: Mapping[str, str], more: AbstractSet[str] = frozenset()
) -> Mapping[str, str]:
    """Return the headers that stay with the events of a request; names are in lower case."""
    return {
        name: value
        for name, value in headers.items()
        if name in KEPT or name.startswith(ATTRIBUTE) or (name in more and name not in NEVER_KEPT)
    } or NO_HEADERS


def header_names(names: Iterable[str]) -> frozenset[str]:
    """Return the names in lower case; ConfigError for an invalid name, or that of a credential."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"keep_headers: {name!r} is not a valid header name")
        if name.lower() in NEVER_KEPT:
            raise ConfigError(
                f"keep_headers: {name!r} holds credentials, which no event may keep: remove it"
            )
    return frozenset(name.lower() for name in names)
