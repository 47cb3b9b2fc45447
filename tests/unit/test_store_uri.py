"""The URI of a store: its parts, its options, and errors that show no secret."""

from __future__ import annotations

import traceback
from typing import Literal

import msgspec
import pytest

from eventonce.errors import ConfigError
from eventonce.stores.uri import Count, CountOrZero, Seconds, parse_uri

SECRET = "s3cr3t"
HELP = "Write redis://host."


class Options(msgspec.Struct):
    timeout: Seconds | None = None
    connections: Count = 5
    wait_replicas: CountOrZero = 0
    synchronous: Literal["normal", "full"] = "normal"
    prefix: str = "eventonce"


def refusal(uri: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_uri(uri, HELP).read(Options)
    said = "".join(traceback.format_exception(refused.value))
    assert SECRET not in f"{said}{refused.value.__context__!r}"
    return str(refused.value)


def test_a_uri_is_split_into_its_parts_and_percent_decoded() -> None:
    uri = parse_uri("redis://me%40here:p%2Fw@One:7000,[::1]/a%20b?prefix=x%26y", HELP)
    assert (uri.scheme, uri.user, uri.password) == ("redis", "me@here", "p/w")
    assert uri.hosts == (("One", 7000), ("::1", None))
    assert (uri.path, uri.options) == ("/a b", {"prefix": "x&y"})
    assert "p/w" not in repr(uri)


def test_the_uri_of_a_file_needs_no_host_and_may_contain_any_character() -> None:
    uri = parse_uri("sqlite:///a@b%23.db", HELP)
    assert (uri.hosts, uri.path) == ((), "/a@b#.db")


def test_options_have_their_types_and_their_defaults() -> None:
    read = parse_uri("redis://host?timeout=1.5&wait_replicas=2&prefix=7", HELP).read(Options)
    assert read == Options(timeout=1.5, wait_replicas=2, prefix="7")


def test_options_for_another_reader_are_left_in_the_uri() -> None:
    uri = parse_uri("redis://host?timeout=1&sslmode=require", HELP)
    assert uri.read(Options, others=True) == Options(timeout=1)
    assert uri.options["sslmode"] == "require"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("timeout=never", "a number of seconds, greater than 0 and at most 3600"),
        ("timeout=nan", "a number of seconds, greater than 0 and at most 3600"),
        ("connections=0", "a whole number, at least 1"),
        ("wait_replicas=-1", "a whole number, 0 or greater"),
        ("synchronous=perhaps", "normal or full"),
    ],
)
def test_an_option_with_a_wrong_value_is_named_with_the_allowed_values(
    option: str, expected: str
) -> None:
    said = refusal(f"redis://:{SECRET}@host?{option}")
    assert said == f"store redis://…: {option} is not allowed; expected {expected}"


def test_an_unknown_option_is_named_with_the_known_options() -> None:
    said = refusal(f"redis://host?bogus={SECRET}")
    assert said.startswith("store redis://host…: no option 'bogus'. Allowed are: timeout, ")


@pytest.mark.parametrize(
    "uri",
    [
        f"redis://:half?{SECRET}@host/0",
        f"redis://:half?{SECRET}=1@host/0",
        f"redis://:half@more?{SECRET}@host/0",
        f"redis://:half?timeout={SECRET}@host/0",
        f"redis://:{SECRET}/more@host/0",
        f"redis://:half#{SECRET}@host/0",
        f"redis://host?{SECRET}%20{SECRET}",
        f"redis://user:{SECRET}",
        f"redis://user:{SECRET}@host:port",
        f"redis://user:{SECRET}@host:70000",
        f"redis://user:{SECRET}@one,,two",
        f"redis://user:{SECRET}@[host",
    ],
)
def test_a_uri_that_cannot_be_read_shows_no_part_of_a_password(uri: str) -> None:
    refusal(uri)
