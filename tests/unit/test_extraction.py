"""The values of an event, and the parts of its key: the fast path agrees with full decoding."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from eventonce.envelope import read
from eventonce.errors import EnvelopeError
from eventonce.rules import Rule, parts
from eventonce.rules.claims import claimer, compiled, keyring, together
from eventonce.rules.expressions import parse_path
from eventonce.rules.keys import encode
from eventonce.rules.parts import Incomplete, Tree, extractor, places_for
from eventonce.types import Claim, Event
from tests.unit.made import TIME, classic

PLACES = [
    ("detail.a", "detail.t"),
    ("body.a", "body.b", "body.t"),
    ("body.a.b", "body.t"),
    ("detail.a.b.c", "detail.a.b.d", "detail.a.t", "body.b"),
    ("detail.a", "envelope.detail.a", "envelope.x.y", "headers.h", "id"),
    ("detail.a", "detail.a.b"),
    ("body.a", "detail.eventBody.a"),
    ("envelope.detail", "envelope.detail.a", "type"),
    ("id", "time"),
]


def walked(event: Event, paths: tuple[str, ...]) -> list[Any]:
    """The values at these paths in the whole event."""
    tree = Tree(event)
    return [tree.value(path.root, path.steps) for path in map(parse_path, paths)]


single = st.sampled_from(
    [
        *[None, True, 0, 7, -1, 2**63, 2**64, 2**80, 1.0, 1.5, "", "x", "7", TIME, float(TIME)],
        *["2025-12-12T15:04:25.431Z", "v2.users", {}, [], {"b": 1}, {"b": {"c": 1, "d": None}}],
        *[{"b": {"c": TIME, "d": "x"}}],
        *[[{"b": 2}, {"b": 1}], ["y", "x"], [1, None], "é", "😀"],
    ]
)
fields = st.dictionaries(st.sampled_from(["a", "b", "t"]), single, max_size=3)
details = st.builds(
    lambda top, inner, topic: {**top, **inner, **topic},
    fields,
    st.dictionaries(st.just("eventBody"), fields | single, max_size=1),
    st.dictionaries(st.just("topicName"), single, max_size=1),
)


def assert_same_values(paths: tuple[str, ...], event: Event) -> None:
    places = places_for([parse_path(path) for path in paths])
    values = dict(zip(places, extractor(tuple(places))(event), strict=True))
    expected = walked(event, paths)
    found = [values[path.root, path.steps] for path in map(parse_path, paths)]
    assert encode(found) == encode(expected)


@pytest.mark.parametrize("paths", PLACES, ids="+".join)
@settings(deadline=None)
@given(details, st.booleans())
@example({"a": 1, "b": 2, "t": TIME}, False)
@example({"eventBody": {"a": "x", "b": "y", "t": TIME}}, True)
@example({"eventBody": None, "a": 1, "t": TIME}, False)
def test_picked_values_equal_the_values_of_the_whole_event(
    paths: tuple[str, ...], detail: Any, has_header: bool
) -> None:
    headers = {"h": "w"} if has_header else {}
    envelope = classic(detail)
    assert_same_values(paths, read(envelope, headers=headers))
    assert_same_values(paths, read({"Data": envelope, "SystemMetadata": {}}, headers=headers))


@pytest.mark.parametrize("paths", PLACES, ids="+".join)
@pytest.mark.parametrize(
    "detail",
    [
        b'{"a": 1, "a": {"b": 2}, "t": 5}',
        b'{"eventBody": {"a": 1}, "eventBody": {"b": 2, "t": 5}}',
        b'{"a": 1e400, "b": 2, "t": 1e400}',
        b'{"x": ' + b"9" * 5000 + b', "a": ' + b"9" * 5000 + b', "t": 1765551865126}',
        b'{"eventBody": {"a": 1, "b": 2, "t": 1765551865126, "x": 1e400}}',
        b'{"eventBody": {"a": -0, "b": -0.0, "t": 1.765551865126e12}}',
    ],
)
def test_picked_values_equal_the_values_of_the_whole_event_for_odd_json(
    paths: tuple[str, ...], detail: bytes
) -> None:
    assert_same_values(paths, read(b'{"id": "i", "detail-type": "t", "detail": ' + detail + b"}"))


PLAIN = [
    Rule(name="time", key=["body.a", "body.b", "body.t"], at="body.t"),
    Rule(name="optional", key=["body.a?", "body.b?", "body.t?"], at="body.t"),
    Rule(name="single", key=["detail.a"], verify=["body.b"]),
    Rule(name="across", key=["body.t", "id", "detail.a"], at="body.t"),
    Rule(name="state", subject=["body.a"], order="body.t", at="body.t", state=["body.b?"]),
]


@pytest.mark.parametrize("rule", PLAIN, ids=lambda rule: rule.name)
@settings(deadline=None)
@given(details)
@example({"eventBody": {"a": "x", "b": "y", "t": TIME}})
@example({"eventBody": {"a": " ", "b": True, "t": 1.5}})
def test_a_plain_key_gives_the_same_claim_as_the_general_way(rule: Rule, detail: Any) -> None:
    event = read(classic(detail))
    key = compiled(rule, rule.key or rule.subject, rule.kind)
    assert key.plain
    closely = replace(key, plain=False, pick=together(key.parts), at_place=None)
    found: list[Claim | str] = []
    for one in (key, closely):
        try:
            found.append(claimer(one, "crm", event, keyring())(event, 1))
        except Incomplete as incomplete:
            found.append(str(incomplete))
    assert found[0] == found[1]


def test_only_the_requested_fields_of_a_usual_event_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the tests above would compare full decoding with itself."""

    def fail(_: bytes) -> None:
        raise ValueError

    monkeypatch.setattr(parts, "decode_exact", fail)
    places = places_for([parse_path("body.a"), parse_path("detail.t"), parse_path("id")])
    usual = b'{"t": 5, "eventBody": {"a": 1}}'
    assert extractor(tuple(places))(Event(b"{}", usual, id="i")) == (1, 5, "i")
    with pytest.raises(EnvelopeError, match="cannot be decoded"):
        extractor(tuple(places))(Event(b"{}", usual.replace(b"eventBody", b"body"), id="i"))


@pytest.mark.parametrize("name", ["a\\b", "a\x01b"])
def test_a_field_name_may_have_characters_that_json_escapes(name: str) -> None:
    places = places_for([parse_path(f"detail.{name}"), parse_path("body.c")])
    event = Event(b"{}", json.dumps({name: "x", "eventBody": {"c": 1}}).encode())
    assert sorted(map(str, extractor(tuple(places))(event))) == ["1", "x"]
