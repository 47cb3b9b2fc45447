"""The language of key parts: how each expression is parsed, and the error for a wrong one."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce.rules.expressions import Each, Expression, Field, Hash, Max, Path, Time, Topic, parse

TOPIC = Path("detail", ("topicName",))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("detail.a", Path("detail", ("a",))),
        ("detail.eventBody.a", Path("detail", ("eventBody", "a"))),
        ("body.a?", Path("body", ("a",), optional=True)),
        ("envelope.account", Path("envelope", ("account",))),
        ("headers.Webhook-Id", Path("headers", ("webhook-id",))),
        ("detail.interaction-id", Path("detail", ("interaction-id",))),
        ('detail."a.b"."c?"', Path("detail", ("a.b", "c?"))),
        (r'detail."say \"hi\" \\"', Path("detail", ('say "hi" \\',))),
        ("detail.détail", Path("detail", ("détail",))),
        ("id", Path("event", ("id",))),
        ("source", Path("event", ("source",))),
        ("time", Path("event", ("time",))),
        ("org?", Path("event", ("org",), optional=True)),
        ("topic", TOPIC),
        ("topic(2)", Topic(2, TOPIC)),
        ("topic(2)?", Topic(2, Path("detail", ("topicName",), optional=True))),
        ("hash(body)", Hash(Path("body", ()))),
        ("hash(detail.a?)", Hash(Path("detail", ("a",), optional=True))),
        ("hash(detail.a)?", Hash(Path("detail", ("a",), optional=True))),
        ("time(detail.a)", Time(Path("detail", ("a",)))),
        ('time( detail.a , "s" )', Time(Path("detail", ("a",)), form="s")),
        ('floor(detail.a, "1s")', Time(Path("detail", ("a",)), width=1000)),
        (
            'floor(time(detail.a, "s"), "1m")',
            Time(Time(Path("detail", ("a",)), form="s"), width=60_000),
        ),
        ("max(body.a, body.b?)", Max((Path("body", ("a",)), Path("body", ("b",), optional=True)))),
        ("each(body.list)", Each(Path("body", ("list",)))),
        (
            "each(body.list?, a, b.c?)",
            Each(
                Path("body", ("list",), optional=True),
                (Field(("a",)), Field(("b", "c"), optional=True)),
            ),
        ),
    ],
)
def test_an_expression_is_read(text: str, tree: Expression) -> None:
    assert parse(text) == tree


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a name"),
        ("detail", r"write hash\(detail\)"),
        ("body?", r"write hash\(body\)"),
        ("detail.", "expected a name"),
        ("detail..a", "expected a name"),
        ("conversationId", "a path begins with detail., body., envelope. or headers."),
        ("event.id", "unknown name 'event.id'"),
        ("headers", "headers.name"),
        ("headers.a.b", "headers.name"),
        ("detail.a b", "nothing may follow"),
        ("detail.a?.b", "nothing may follow"),
        ('detail."a', "cannot read"),
        ("md5(detail.a)", "hash, topic, time, floor, max, each"),
        ("hash(detail.a", r"expected '\)'"),
        ("hash()", "expected a name"),
        ("topic(x)", "counted from 0"),
        ("topic(-1)", "counted from 0"),
        ("time(detail.a, s)", "string in double quotes"),
        ('time(detail.a, "us")', '"s", "ms" or "iso"'),
        ("floor(detail.a)", "expected ','"),
        ('floor(detail.a, "1y")', "expected a duration"),
        ('floor(detail.a, "0s")', "must be greater than 0"),
        ("max()", "expected a name"),
        ("max(detail.a, hash(detail.b))", "expected a path, or one of time, floor and max"),
        ("time(topic(1))", "expected a path, or one of time, floor and max"),
        ("each(detail.a,)", "expected a name"),
    ],
)
def test_the_error_for_a_wrong_expression_quotes_the_expression_and_gives_the_reason(
    text: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse(text)
    assert repr(text) in str(caught.value)


@given(st.text(st.sampled_from('detailbodyhash(),.?"\\ 012max'), max_size=40))
def test_any_text_is_parsed_or_raises_a_value_error(text: str) -> None:
    with suppress(ValueError):
        parse(text)
