"""Keys: different values have different keys, and the same value always has the same key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce import Consumer
from eventonce.errors import ConfigError
from eventonce.rules import Rule, Ruleset
from eventonce.rules.keys import ABSENT, content_hash, decode_exact, encode, hasher, number
from eventonce.stores.memory import MemoryStore
from eventonce.types import Event, organisation
from tests.unit.made import ORG, SOURCE, TIME, body, event

KEYED = Rule(name="k", key=["detail.a?", "detail.b?"])
SECRET, OLDER = b"a secret of some length", b"an older secret of length"


def key(
    detail: Any, rule: Rule = KEYED, *, name: str = "crm", secrets: Any = (), **changes: Any
) -> bytes:
    ruleset = Ruleset([rule], name=name, secrets=secrets)
    return ruleset.plan(event(detail, **changes), 1)[1].key


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from("a1é0.\x00"), max_size=6)
    | st.binary(max_size=4)
    | st.just(ABSENT)
)
part_lists = st.recursive(
    st.lists(scalars, max_size=4), lambda inner: st.lists(scalars | inner, max_size=4), max_leaves=8
)


def exactly(value: Any) -> Any:
    """The list, written so that equal means equal in value and in type."""
    if isinstance(value, list):
        return ("list", *map(exactly, value))
    if isinstance(value, float) and value.is_integer():
        return ("int", int(value))
    return (type(value).__name__, value if value is not ABSENT else "absent")


def normal(value: Any) -> Any:
    """Numbers as the decoder gives them."""
    if isinstance(value, list):
        return [normal(item) for item in value]
    return number(repr(value)) if isinstance(value, float) else value


@given(part_lists, part_lists)
def test_no_two_different_part_lists_share_an_encoding(one: Any, other: Any) -> None:
    same = encode(normal(one)) == encode(normal(other))
    assert same == (exactly(one) == exactly(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": True}),
        ({"a": 0, "b": "x"}, {"a": False, "b": "x"}),
        ({"a": None, "b": "x"}, {"b": "x"}),
        ({"a": "", "b": "x"}, {"b": "x"}),
        ({"a": "", "b": "x"}, {"a": None, "b": "x"}),
        ({"a": 0, "b": "x"}, {"a": "", "b": "x"}),
        ({"a": "null", "b": "x"}, {"a": None, "b": "x"}),
        ({"a": "ab", "b": "c"}, {"a": "a", "b": "bc"}),
        ({"a": "x"}, {"b": "x"}),
        ({"a": 2**53}, {"a": 2**53 + 1}),
        ({"a": 2**64}, {"a": 2**64 + 1}),
        ({"a": 2**64}, {"a": str(2**64)}),
        ({"a": 1.5}, {"a": 1}),
        ({"a": 0.1}, {"a": 0.2}),
        ({"a": "é"}, {"a": "e\u0301"}),
        ({"a": "VOICE"}, {"a": "voice"}),
        ({"a": "x"}, {"a": "x "}),
        ({"a": "x\x00"}, {"a": "x"}),
    ],
)
def test_different_values_have_different_keys(one: Any, other: Any) -> None:
    assert key(one) != key(other)
    assert key({"h": one}, HASHED) != key({"h": other}, HASHED)


HASHED = Rule(name="h", key=["hash(detail.h)"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1}', b'{"a": 1.0}'),
        (b'{"a": 1000}', b'{"a": 1e3}'),
        (b'{"a": 0}', b'{"a": -0.0}'),
        (b'{"a": 100000000000000000000}', b'{"a": 1e20}'),
        (b'{"a": 0.5}', b'{"a": 5e-1}'),
        (b'{"a": "\\u00e9"}', '{"a": "é"}'.encode()),
        (b'{"a": "/"}', b'{"a": "\\/"}'),
        (b'{"a": 7, "a": 1}', b'{"a": 1}'),
    ],
)
def test_the_same_value_in_another_notation_has_the_same_key(one: bytes, other: bytes) -> None:
    def keys(detail: bytes) -> tuple[bytes, bytes]:
        plain = Event(b"{}", detail, id="i", type="t")
        inside = Event(b"{}", b'{"h":' + detail + b"}", id="i", type="t")
        return (
            Ruleset([KEYED], name="crm").plan(plain, 1)[1].key,
            Ruleset([HASHED], name="crm").plan(inside, 1)[1].key,
        )

    assert keys(one) == keys(other)


def test_a_key_holds_consumer_organisation_type_and_kind() -> None:
    same = {"a": "x"}
    state = Rule(name="s", subject=["detail.a?", "detail.b?"], order="detail.n")
    keys = [
        key(same),
        key(same, name="other"),
        key(same, source=SOURCE.replace("0b4c", "0b4d")),
        key(same, detail_type="another"),
        key({**same, "n": 1}, state),
    ]
    assert len(set(keys)) == len(keys)
    assert {len(one) for one in keys} == {16}


@pytest.mark.parametrize(
    ("source", "named"),
    [("crm", ""), (SOURCE, ORG), (SOURCE.ljust(512, "x"), ORG), (SOURCE.ljust(513, "x"), "")],
    ids=["of nobody", "usual", "the longest", "too long"],
)
def test_only_a_source_of_genesys_names_an_organisation(source: str, named: str) -> None:
    assert organisation(source) == named


def test_a_key_does_not_depend_on_the_fields_that_change_with_every_publish() -> None:
    again = key({"a": "x"}, id="new", time="2025-12-16T00:00:00Z", source=f"{SOURCE}-2", region="x")
    assert again == key({"a": "x"})


def test_the_name_of_the_rule_is_no_part_of_the_key() -> None:
    assert key({"a": 1}) == key({"a": 1}, Rule(name="renamed", key=["detail.a?", "detail.b?"]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text("ab1", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner),
    max_leaves=10,
)


def turned(value: Any) -> Any:
    """The same value with the fields of every object in the opposite order."""
    if isinstance(value, dict):
        return {name: turned(value[name]) for name in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(st.sampled_from("abcde"), json_values, max_size=5))
def test_the_order_of_fields_does_not_change_a_key(value: Any) -> None:
    rules = [Rule(name="h", key=["hash(detail)", "type"], missing="hash")]
    ruleset = Ruleset(rules, name="crm")
    one = ruleset.plan(event(value), 1)[1]
    other = ruleset.plan(event(turned(value)), 1)[1]
    assert one.key == other.key


def test_the_order_of_a_list_changes_a_key() -> None:
    assert key({"h": [1, 2]}, HASHED) != key({"h": [2, 1]}, HASHED)


TIMED = Rule(name="t", key=["body.conversationId", "body.eventTime"], at="body.eventTime")


def timed(time: Any, rule: Rule = TIMED, conversation: str = "c") -> bytes:
    detail = {"eventBody": body(eventTime=time, conversationId=conversation)}
    return key(detail, rule)


def start(time: int) -> bytes:
    """Return the first bytes of a key that begins with this time."""
    return (time // 10 % 2**32).to_bytes(4, "big")


def test_the_keys_of_a_fact_with_its_own_time_sort_by_that_time() -> None:
    keys = [timed(TIME + 10 * hundredth) for hundredth in range(5)]
    assert keys == sorted(keys)
    assert keys[0].startswith(start(TIME))
    assert timed(TIME, conversation="c")[4:] != timed(TIME, conversation="d")[4:]
    assert timed(TIME)[4:] != timed(TIME + 1)[4:]


@pytest.mark.parametrize(
    "rule",
    [
        Rule(name="no time", key=["body.conversationId", "body.eventTime"]),
        Rule(name="not a part", key=["body.conversationId"], at="body.eventTime"),
        Rule(
            name="a part only when rounded",
            key=["body.conversationId", 'floor(body.eventTime, "1m")'],
            at="body.eventTime",
        ),
    ],
    ids=lambda rule: rule.name,
)
def test_a_time_that_may_differ_between_copies_is_not_in_the_key(rule: Rule) -> None:
    assert not timed(TIME, rule).startswith((start(TIME), start(TIME // 1000 * 1000)))


@pytest.mark.parametrize(
    ("parts", "at"),
    [
        (["body.conversationId", "body.eventTime"], "time(body.eventTime)"),
        (["body.conversationId", "body.eventTime"], 'floor(body.eventTime, "1s")'),
        (["body.conversationId", 'floor(body.eventTime, "1s")'], 'floor(body.eventTime, "1s")'),
        (["body.conversationId", "body.eventTime?"], "body.eventTime"),
    ],
)
def test_a_time_that_follows_from_the_parts_is_in_the_key(parts: list[str], at: str) -> None:
    rule = Rule(name="t", key=parts, at=at)
    floored = TIME // 1000 * 1000 if "floor" in at else TIME
    assert timed(TIME, rule).startswith(start(floored))


@pytest.mark.parametrize("time", ["soon", True, 2**60, "2025-99-99T00:00:00Z"])
def test_a_fact_whose_time_is_invalid_still_has_a_key(time: Any) -> None:
    assert timed(time) == timed(time)
    assert timed(time) != timed("other")


def test_a_secret_changes_every_digest() -> None:
    rule = Rule(name="v", key="detail.a", verify=True)
    plain, keyed, other = (
        Ruleset([rule], name="crm", secrets=secrets).plan(event({"a": 1}), 1)[1]
        for secrets in ((), (SECRET,), (OLDER,))
    )
    for one, two in ((plain, keyed), (keyed, other)):
        assert one.key != two.key
        assert one.digest != two.digest
        assert one.by != two.by
    assert [len(keyed.key), len(keyed.digest), len(keyed.by)] == [16, 8, 4]


def test_a_rotated_secret_also_gives_the_key_of_the_old_secret() -> None:
    old = Ruleset([KEYED], name="crm", secrets=[OLDER]).plan(event({"a": 1}), 1)[1]
    ruleset = Ruleset([KEYED], name="crm", secrets=[SECRET, OLDER])
    rule, claim = ruleset.plan(event({"a": 1}), 1)
    [also] = ruleset.also(event({"a": 1}), rule, 1)
    assert claim.key != old.key
    assert (also.key, also.peek, also.by) == (old.key, True, old.by)


def test_a_consumer_with_a_rotated_secret_runs_no_event_again() -> None:
    store, ran = MemoryStore(), list[object]()
    for secrets in ([OLDER], [SECRET, OLDER]):
        consumer = Consumer(store, rules=KEYED, secrets=secrets, handler=ran.append)
        consumer.process([event({"a": 1})])
    assert len(ran) == 1


@pytest.mark.parametrize("missing", ["hash", "id", "run"])
def test_a_rotated_secret_also_gives_the_old_key_of_an_event_with_missing_parts(
    missing: str,
) -> None:
    rule = Rule(name="r", key="detail.none", missing=missing)
    old = Ruleset([rule], name="crm", secrets=[OLDER]).plan(event({"a": 1}), 1)[1]
    [also] = Ruleset([rule], name="crm", secrets=[SECRET, OLDER]).also(event({"a": 1}), rule, 1)
    assert (also.key, also.peek) == (old.key, True)


def test_an_event_that_always_runs_has_no_older_keys() -> None:
    rule = Rule(name="r", key="detail.none", missing="run")
    ruleset = Ruleset([rule], name="crm", secrets=[SECRET, OLDER])
    assert ruleset.also(event({"a": 1}, id=""), rule, 1) == []


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        Ruleset([KEYED], name="crm", secrets=[b"hunter2"])


def test_the_last_byte_of_a_long_secret_changes_the_digest() -> None:
    one, other = (hasher(16, b"x" * 100 + end) for end in (b"1", b"2"))
    assert one(b"") != other(b"")


def test_a_consumer_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected the name of the consumer"):
        Ruleset([KEYED], name="")


def test_a_number_that_python_cannot_hold_has_a_key_of_its_own() -> None:
    beyond = ["1e400", "-1e400", "1e401", "1" * 400 + ".0", "1" * 400 + ".1"]
    beyond += ["1" * 5000, "-" + "1" * 5000, "1" * 4999 + "2"]
    details = [f'{{"a": {it}}}'.encode() for it in ["1", *beyond, *(f'"{it}"' for it in beyond)]]
    plan = Ruleset([KEYED], name="crm").plan
    keys = {plan(Event(b"{}", detail, type="t"), 1)[1].key for detail in details}
    hashes = {content_hash(encode(decode_exact(detail))) for detail in details}
    assert len(keys) == len(hashes) == len(details)


def test_golden_keys_of_format_1() -> None:
    """These keys are in the stores of users: after a change no copy of a stored event is known."""
    plain = key({"a": "x", "b": 7})
    secret = key({"a": "x", "b": 7}, secrets=[SECRET])
    assert [plain.hex(), secret.hex(), timed(TIME).hex()] == GOLDEN


GOLDEN = [
    "07db06da3aaf177b62962dc2976e3599",
    "b2f164129495aa9c8c64c2ffc0b26914",
    "1b825950e84596a84e46994fcb440317",
]
