from __future__ import annotations

import pytest

from eventonce.aws import s3, sqs
from eventonce.aws.sessions import Access
from eventonce.cli.options import placed_uri

THERE = "http://127.0.0.1:4566"


@pytest.mark.parametrize(
    ("uri", "access"),
    [
        ("sqs://calls", Access("eu-west-1", THERE)),
        ("sqs://calls?profile=dev", Access("eu-west-1", THERE, "dev")),
        ("sqs://calls?region=eu-central-1", Access("eu-central-1", THERE)),
        ("sqs://calls?endpoint=http://[::1]:9&region=a", Access("a", "http://[::1]:9")),
    ],
)
def test_region_and_endpoint_hold_for_a_uri_that_has_none_of_its_own(
    uri: str, access: Access
) -> None:
    assert sqs.parse(placed_uri(uri, "eu-west-1", THERE)).access == access


def test_a_prefix_that_has_the_name_of_an_option_is_none() -> None:
    found = s3.parse(placed_uri("s3://lake/region=eu/", "eu-west-1", None))
    assert found == ("lake", "region=eu/", Access("eu-west-1"))


def test_a_value_is_quoted() -> None:
    found = sqs.parse(placed_uri("sqs://calls", "a&profile=b", None))
    assert found.access == Access("a&profile=b")


def test_without_options_the_uri_stays() -> None:
    assert placed_uri("sqs://calls", None, None) == "sqs://calls"
