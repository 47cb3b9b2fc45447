"""The dialects of SQL: the expressions in which they differ, for JSON, hashes and dates.

All other SQL is written for DuckDB, with these expressions as functions whose names begin with
`EO_`; sqlglot translates it into the dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from eventonce.errors import ConfigError

Steps = tuple[str, ...]


_FOLD: Final = "CASE WHEN y - x >= 0 AND y - x < b THEN x ELSE y END"
_CLASS: Final = r"\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
_LITERALS: Final = "\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


class Dialect(NamedTuple):
    """The expressions of one dialect; `a` and `b` are their arguments."""

    name: str
    parsed: str
    """A text as a JSON value; NULL if it is not JSON."""
    below: str
    """The JSON value at the path `b` of the JSON value `a`; NULL if there is none."""
    items: str
    """A JSON array as a list of JSON values; NULL for anything else."""
    content: str
    """A text that is the same for equal JSON values, whatever the order of their fields."""
    inexact: str
    """Whether the text `a` of a content has equal numbers that may be written differently."""
    without: str
    """The JSON object `a` without the fields `b`."""
    suspect: str
    """Whether the JSON text `a` can be read in two ways."""
    anchor: str
    """The last moment in the list `a` that did not come within `b` of an earlier one."""
    text: str = "TO_JSON(a)"
    """A JSON value as text, in which equal strings are written alike."""
    sha256: str = "SHA2(a, 256)"
    date: str = "TRY_CAST(a AS DATE)"
    """A text as a date; NULL if it is none."""
    decimal: str = "TRY_CAST(TRY_CAST(a AS DOUBLE) AS DECIMAL(27, 9))"
    """A JSON number with nine decimal places; NULL if it is none."""
    wide_spaces: str = _CLASS
    """The white space beyond ASCII in a regular expression."""


_STRINGS: Final = r'"([^"\\]|\\.)*"'
_PAIRS: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF: Final = r"(.|\n)*\\u[dD][89a-fA-F](.|\n)*"


def literal(text: str, *, escaped: bool = False) -> str:
    """Return this text as a literal; `escaped` where a backslash begins an escape."""
    return "'" + (text.replace("\\", "\\\\") if escaped else text).replace("'", "''") + "'"


def _half(like: str, *, escaped: bool) -> str:
    pairs, half = literal(_PAIRS, escaped=escaped), literal(_HALF, escaped=escaped)
    return like.format(f"REGEXP_REPLACE(a, {pairs}, '')", half)


DIALECTS: Final[dict[str, Dialect]] = {
    "duckdb": Dialect(
        name="duckdb",
        parsed="CASE WHEN JSON_VALID(a) THEN CAST(a AS JSON) END",
        below="JSON_EXTRACT_PATH(a, b)",
        text="CAST(a AS VARCHAR)",
        items="CASE WHEN JSON_TYPE(a) = 'ARRAY' THEN CAST(a AS JSON[]) END",
        # Outside of strings, 1.0 is written as 1.
        content="REGEXP_REPLACE(JSON_NORMALIZE(a), "
        + literal(f"({_STRINGS})" + r"|-(0)\.0([,\]}]|$)|([0-9])\.0([,\]}]|$)")
        + r", '\1\3\4\5\6', 'g')",
        inexact="REGEXP_MATCHES(REGEXP_REPLACE(a, "
        + literal(_STRINGS)
        + ", '', 'g'), '[0-9][eE]|[0-9]{16}[.]')",
        without="CASE WHEN JSON_TYPE(a) = 'OBJECT' THEN JSON_MERGE_PATCH(a, b) ELSE a END",
        sha256="SHA256(a)",
        decimal="TRY_CAST(a AS DECIMAL(27, 9))",
        # DuckDB reads NaN, and of two fields with one name the first; the engine takes the last.
        suspect="REGEXP_MATCHES(REGEXP_REPLACE(a, "
        + literal(_STRINGS)
        + ", '0', 'g'), '(?i)nan|inf|,\\s*[\\]}]')",
        anchor=f"LIST_REDUCE(a, LAMBDA x, y : {_FOLD})",
    ),
    "spark": Dialect(
        name="spark",
        parsed="TRY_PARSE_JSON(a)",
        below="VARIANT_GET(a, b, 'variant')",
        items="TRY_CAST(a AS ARRAY<VARIANT>)",
        # Parsed twice: a number that is written as 1.0 the first time is then written as 1.
        content="TO_JSON(TRY_PARSE_JSON(TO_JSON(a)))",
        inexact="REGEXP_REPLACE(a, " + literal(_STRINGS, escaped=True) + ", '') RLIKE "
        "'[0-9]E|(?=[0-9.]{17})[0-9]+[.][0-9]'",
        without="TRY_PARSE_JSON(COALESCE(TO_JSON(MAP_FILTER(FROM_JSON(TO_JSON(a), "
        "'map<string,variant>'), (k, v) -> NOT k IN (b))), TO_JSON(a)))",
        suspect=_half("{} RLIKE {}", escaped=True),
        anchor=f"AGGREGATE(a, CAST(NULL AS BIGINT), (x, y) -> {_FOLD})",
    ),
    "athena": Dialect(
        name="athena",
        parsed="TRY(JSON_PARSE(a))",
        below="JSON_EXTRACT(a, b)",
        text="JSON_FORMAT(a)",
        items="TRY_CAST(a AS ARRAY(JSON))",
        content="JSON_FORMAT(a)",
        inexact="REGEXP_LIKE(REGEXP_REPLACE(a, " + literal(_STRINGS) + ", ''), '[0-9][eE.]')",
        without="COALESCE(CAST(MAP_FILTER(TRY_CAST(a AS MAP(VARCHAR, JSON)), "
        "(k, v) -> NOT k IN (b)) AS JSON), a)",
        sha256="LOWER(TO_HEX(SHA256(TO_UTF8(a))))",
        suspect=_half("REGEXP_LIKE({}, {})", escaped=False),
        anchor=f"REDUCE(a, CAST(NULL AS BIGINT), (x, y) -> {_FOLD}, x -> x)",
    ),
    "snowflake": Dialect(
        name="snowflake",
        parsed="TRY_PARSE_JSON(a)",
        below="GET_PATH(a, b)",
        items="CASE WHEN IS_ARRAY(a) THEN CAST(a AS ARRAY) END",
        content="TO_JSON(a)",
        inexact="REGEXP_LIKE(REGEXP_REPLACE(a, " + literal(_STRINGS, escaped=True) + ", ''), "
        "'.*[0-9][eE.].*')",
        without="CASE WHEN IS_OBJECT(a) "
        "THEN OBJECT_PICK(a, ARRAY_EXCEPT(OBJECT_KEYS(a), [b])) ELSE a END",
        date="TRY_TO_DATE(a, 'YYYY-MM-DD')",
        decimal="TRY_TO_NUMBER(a, 27, 9)",
        suspect=_half("REGEXP_LIKE({}, {})", escaped=True),
        anchor=f"REDUCE(a, NULL, (x, y) -> {_FOLD})",
        wide_spaces=_LITERALS,
    ),
}


def path(dialect: str, steps: Sequence[str]) -> str:
    """Return the path of these names below a JSON value, as a text of this dialect."""
    for step in steps:
        if any(mark in step for mark in "\"'\\") or not step.isprintable():
            raise ConfigError(f"sql: the name {step!r} cannot be used in a path of SQL")
    if dialect == "duckdb":
        return "$" + "".join(f'."{step}"' for step in steps)
    return ("" if dialect == "snowflake" else "$") + "".join(f'["{step}"]' for step in steps)
