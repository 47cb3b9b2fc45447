"""The expressions of a rule as SQL over columns, with the same results as `rules.parts`.

A value is the text of its JSON; NULL if it is absent. Texts are equal if and only if the values are
equal for the engine: `canon` writes 1.0 as 1, and each dialect writes equal strings alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from eventonce.rules.claims import Key
from eventonce.rules.expressions import Each, Expression, Hash, Max, Path, Time, Topic
from eventonce.rules.instants import EARLIEST_EVENT, LATEST_EVENT, SECONDS_BELOW
from eventonce.rules.keys import NAMELESS
from eventonce.rules.parts import form_of, left_out
from eventonce.study.sql.dialects import Dialect, Steps, path
from eventonce.types import MAX_ORDER

ABSENT_PART: Final = "'{}'"
"""The text of an absent optional part: no part is an object."""

NO: Final = "FALSE"

CONTENT_WANTED: Final = "content_is_wanted"
"""The placeholder of the condition under which a content is computed."""

_ISO_FORM: Final = (
    '^"[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?'
    '([Zz]|[+-][0-9]{2}:?[0-9]{2})?)?"$'
)
_OFFSET: Final = '([+-][0-9]{2}:?[0-9]{2})"$'
_SAFE: Final = 2**53


class Part(NamedTuple):
    """A part of a key as SQL."""

    value: str
    """The text of its JSON; NULL if it is absent."""
    hole: str = NO
    """Whether the event does not have the part."""
    fault: str = NO
    """Whether the event has a value there that cannot be this part."""
    doubt: str = NO
    """Whether SQL may compare the value in another way than the engine."""
    number: str = ""
    """The value as an integer, if the part is one; NULL if it is absent."""
    void: str = ""
    """Whether the part says nothing, if the value alone does not show it."""

    def says_nothing(self) -> str:
        """Return whether different events would share a key that has only such parts."""
        return f"({self.void or is_empty(self.value)} OR {self.value} = '[]')"


def any_of(conditions: Sequence[str]) -> str:
    """Return the condition that one of these holds."""
    found = list(dict.fromkeys(one for one in conditions if one != NO))
    return f"({' OR '.join(found)})" if found else NO


def all_of(conditions: Sequence[str]) -> str:
    """Return the condition that all of these hold."""
    return f"({' AND '.join(conditions)})" if conditions else "TRUE"


def is_empty(value: str) -> str:
    """Return whether a value names nothing, like `rules.keys.is_empty`."""
    return f"EO_EMPTY({value})"


def empty(value: str, dialect: Dialect) -> str:
    """Return the SQL of `EO_EMPTY`."""
    space = rf"( |\\[tnrf]|\\u000[bB]|\\u001[c-fC-F]|[{dialect.wide_spaces}])*"
    nameless = f'^"({"|".join([*sorted(NAMELESS - {""}), space])})"$'
    return f"({value} IS NULL OR {value} = 'null' OR REGEXP_MATCHES({value}, '{nameless}'))"


def canon(value: str) -> str:
    """Return a scalar as text, the same for equal values: 1.0 and 1e0 are 1."""
    double = f"TRY_CAST({value} AS DOUBLE)"
    return f"""CASE WHEN {value} = '-0' THEN '0'
      WHEN NOT {_is_fraction(value)} THEN {value}
      WHEN ABS({double}) < {_SAFE} AND {double} = FLOOR({double})
      THEN CAST(CAST({double} AS BIGINT) AS VARCHAR)
      ELSE CAST({double} AS VARCHAR) END"""


def is_inexact(value: str) -> str:
    """Return whether a number is written as a double, and too large to be exact."""
    fraction = _is_fraction(value)
    return f"COALESCE({fraction} AND NOT ABS(TRY_CAST({value} AS DOUBLE)) < {_SAFE}, FALSE)"


def _is_fraction(value: str) -> str:
    return f"REGEXP_MATCHES({value}, '^-?[0-9]+[.eE].*$')"


def _as_integer(text: str) -> str:
    return f"COALESCE(TRY_CAST({text} AS BIGINT), 0)"


def offset(value: str) -> str:
    """Return the minutes that a time as text is ahead of UTC; NULL if it is no time."""
    zone = f"COALESCE(REGEXP_EXTRACT({value}, '{_OFFSET}', 1), '')"
    minutes = f"{_as_integer(f'SUBSTR({zone}, 2, 2)')} * 60 + {_as_integer(f'RIGHT({zone}, 2)')}"
    return f"""CASE WHEN REGEXP_MATCHES({value}, '{_ISO_FORM}')
      THEN CASE WHEN SUBSTR({zone}, 1, 1) = '-' THEN -1 ELSE 1 END * ({minutes}) END"""


def from_iso(value: str) -> str:
    """Return the instant of a text, in milliseconds; NULL if it is none."""
    hours, minutes = _as_integer(f"SUBSTR({value}, 13, 2)"), _as_integer(f"SUBSTR({value}, 16, 2)")
    seconds = _as_integer(f"CASE WHEN SUBSTR({value}, 18, 1) = ':' THEN SUBSTR({value}, 19, 2) END")
    fraction = f"SUBSTR(COALESCE(REGEXP_EXTRACT({value}, '[.]([0-9]+)', 1), '') || '000', 1, 3)"
    return f"""CASE WHEN ABS(offset_{value}) < 1440 AND SUBSTR({value}, 2, 4) <> '0000'
        AND {hours} < 24 AND {minutes} < 60 AND {seconds} < 60
      THEN CAST(DATE_DIFF('day', CAST('1970-01-01' AS DATE), EO_DATE(SUBSTR({value}, 2, 10)))
          AS BIGINT) * 86400000
        + {hours} * 3600000 + {minutes} * 60000 + {seconds} * 1000 + {_as_integer(fraction)}
        - offset_{value} * 60000 END"""


def from_number(number: str, form: str) -> str:
    """Return the instant of a number."""
    scaled = f"FLOOR({number} * 1000)"
    if form == "s":
        at = scaled
    elif form == "ms":
        at = f"FLOOR({number})"
    else:
        at = f"CASE WHEN ABS({number}) < {SECONDS_BELOW} THEN {scaled} ELSE FLOOR({number}) END"
    return f"CASE WHEN ABS({at}) < {_SAFE} THEN CAST({at} AS BIGINT) END"


def instant(value: str, form: str, iso: str) -> str:
    """Return the instant of a JSON value, like `rules.instants.instant`; `iso` is its instant as a
    text."""
    digits = f"CAST(SUBSTR({value}, 2, LENGTH({value}) - 2) AS DECIMAL(27, 9))"
    text = f"""WHEN REGEXP_MATCHES({value}, '^"-?[0-9]{{1,16}}([.][0-9]{{1,9}})?"$')
      THEN {from_number(digits, form)}"""
    number = f"""WHEN REGEXP_MATCHES({value}, '^-?[0-9].*$')
      THEN CASE WHEN ABS(TRY_CAST({value} AS DOUBLE)) < {_SAFE}
        THEN {from_number(f"EO_DECIMAL({value})", form)} END"""
    if form == "iso":
        return iso
    return f"CASE {text} {number} {'' if form else f'ELSE {iso}'} END"


def order(value: str, iso: str) -> str:
    """Return the order of a JSON value, like `rules.parts.order_of`."""
    digits = f"CAST(SUBSTR({value}, 2, LENGTH({value}) - 2) AS BIGINT)"
    whole = f"REGEXP_MATCHES(canon_{value}, '^-?[0-9]+$')"
    exact = f"CASE WHEN {whole} THEN TRY_CAST(canon_{value} AS BIGINT) END"

    def bounded(number: str) -> str:
        return f"CASE WHEN ABS({number}) <= {MAX_ORDER} THEN {number} END"

    return f"""CASE WHEN REGEXP_MATCHES({value}, '^"-?[0-9]{{1,16}}"$') THEN {bounded(digits)}
      WHEN REGEXP_MATCHES({value}, '^-?[0-9].*$') THEN {bounded(exact)}
      ELSE {iso} END"""


QUESTIONS: Final = {"canon": canon, "empty": is_empty, "inexact": is_inexact, "offset": offset}
"""The questions about the value in a column, each with the function that returns its SQL."""


class Columns:
    """The columns that the expressions of all rules read, each made once."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.values: dict[tuple[str, Steps], str] = {}
        """By root and steps: the column with the text of the value."""
        self.looks: dict[tuple[str, str], str] = {}
        """By question and column of a value (`canon`, `empty`, `inexact`, `offset`): the column."""
        self.instants: dict[str, str] = {}
        """By column of a value: the column with its instant, if it is a time as text."""
        self.moments: dict[tuple[str, str], str] = {}
        """By column and form (`s`, `ms`, `iso`, none, or `order`): the instant or the order."""
        self.contents: dict[tuple[bool, str], tuple[str, list[int]]] = {}
        """By whether it is for a key of last resort, and by its SQL: the column of a content, and
        the numbers of the rules that read it."""
        self.rule = 0
        """The number of the rule that is being translated."""
        self.last_resort = False

    def value(self, one: Path) -> str:
        """Return the column with the text of the value at this path."""
        if one.root == "headers":
            return "CAST(NULL AS VARCHAR)"
        if one.root == "event":
            return f"its_{one.steps[0]}"
        path(self.dialect.name, one.steps)
        return self.values.setdefault((one.root, one.steps), f"v{len(self.values)}")

    def moment(self, column: str, form: str) -> str:
        """Return the column with the instant or the order of another column."""
        if column.startswith("CAST(NULL"):
            return "CAST(NULL AS BIGINT)"
        self.look("canon", column)
        self.look("offset", column)
        self.instants.setdefault(column, f"i{len(self.instants)}")
        return self.moments.setdefault((column, form), f"m{len(self.moments)}")

    def look(self, question: str, column: str) -> str:
        """Return the column with the answer to a question about another column."""
        if column.startswith("CAST(NULL"):
            return {"canon": column, "empty": "TRUE", "inexact": NO}[question]
        return self.looks.setdefault((question, column), f"{question}_{column}")

    def is_empty(self, column: str) -> str:
        """Return whether the value in a column names nothing."""
        return self.look("empty", column)

    def json(self, root: str, steps: Steps) -> str:
        """Return the JSON value at this path, in the dialect."""
        if root == "envelope":
            return f"EO_BELOW(doc, '{path(self.dialect.name, steps)}')" if steps else "doc"
        inside = f"EO_BELOW(doc, '{path(self.dialect.name, ('detail', *steps))}')"
        if root == "detail":
            return inside
        nested = path(self.dialect.name, ("detail", "eventBody", *steps))
        return f"CASE WHEN has_body THEN EO_BELOW(doc, '{nested}') ELSE {inside} END"

    def part(self, tree: Expression, ignored: Sequence[Path] = ()) -> Part:
        """Return an expression as SQL."""
        match tree:
            case Path():
                return self._path(tree)
            case Hash(of=one):
                return self._hash(one, ignored)
            case Topic():
                return self._topic(tree)
            case Time():
                return self._time(tree)
            case Max():
                return self._max(tree)
            case Each():
                return self._each(tree)

    def _path(self, tree: Path) -> Part:
        value = self.value(tree)
        return Part(
            self.look("canon", value),
            hole=NO if tree.optional else self.is_empty(value),
            fault=f"COALESCE(SUBSTR({value}, 1, 1) IN ('{{', '['), FALSE)",
            doubt=self.look("inexact", value),
        )

    def _hash(self, one: Path, ignored: Sequence[Path]) -> Part:
        value = self.value(one)
        void = self.is_empty(value)
        if one.root in ("event", "headers"):
            content, doubt = value, NO
        else:
            content, lines = self.content(one, ignored)
            doubt = f"COALESCE(EO_INEXACT({content}), FALSE)"
            nothings = ", ".join(f"'{text}' || {lines}" for text in ("{}", "[]", "null"))
            void = f"({value} IS NULL OR {value} = 'null' OR {content} IN ({nothings}))"
        return Part(
            f"""CASE WHEN {value} IS NULL OR {value} = 'null' THEN {value}
            ELSE '{{"hash":"' || EO_SHA256({content}) || '"}}' END""",
            hole=NO if one.optional else self.is_empty(value),
            doubt=doubt,
            void=void,
        )

    def content(self, one: Path, ignored: Sequence[Path]) -> tuple[str, str]:
        """Return the column with the text of the content there, without ignored fields; and the
        text that follows an empty object there."""
        nested, flat = left_out(one, ignored)
        if one.root == "body":
            made, lines = self._content(self.json("detail", ("eventBody", *one.steps)), nested)
            other, other_lines = self._content(self.json("detail", one.steps), flat)
            text = f"CASE WHEN has_body THEN {made} ELSE {other} END"
            lines = f"CASE WHEN has_body THEN {lines} ELSE {other_lines} END"
        else:
            text, lines = self._content(self.json(one.root, one.steps), nested)
        made_for = (self.last_resort, text)
        column, rules = self.contents.setdefault(made_for, (f"c{len(self.contents)}", []))
        if self.rule not in rules:
            rules.append(self.rule)
        return column, lines

    def _content(self, value: str, ignored: Sequence[Steps]) -> tuple[str, str]:
        texts = self._texts(value, ignored)
        if len(texts) == 1:
            return texts[0], "''"
        lines = " || ".join("CHR(10)" for _ in texts[1:])
        return " || CHR(10) || ".join(f"COALESCE({text}, '')" for text in texts), lines

    def _texts(self, value: str, ignored: Sequence[Steps]) -> list[str]:
        """Return the content without the ignored fields, and the content of each object that has an
        ignored field inside."""
        whole = {steps[0] for steps in ignored if len(steps) == 1}
        nested: dict[str, list[Steps]] = {}
        for steps in ignored:
            nested.setdefault(steps[0], []).append(steps[1:])
        rest = value
        if nested:
            path(self.dialect.name, tuple(nested))
            names = ", ".join(f"'{name}'" for name in nested)
            rest = f"EO_WITHOUT({value}, {names})"
        texts = [f"EO_CONTENT(CASE WHEN {CONTENT_WANTED} THEN {rest} END)"]
        for name, below in nested.items():
            if name not in whole:
                inner = f"EO_BELOW({value}, '{path(self.dialect.name, (name,))}')"
                texts += self._texts(inner, below)
        return texts

    def _topic(self, tree: Topic) -> Part:
        value = self.value(tree.of)
        is_text = f"COALESCE(SUBSTR({value}, 1, 1) = '\"', FALSE)"
        inner = f"SUBSTR({value}, 2, LENGTH({value}) - 2)"
        segments = f"(LENGTH({value}) - LENGTH(REPLACE({value}, '.', '')) + 1)"
        segment = f"'\"' || SPLIT_PART({inner}, '.', {tree.index + 1}) || '\"'"
        there = f"({is_text} AND {tree.index} < {segments})"
        if tree.of.optional:
            missing = f"({value} IS NULL OR {value} = 'null')"
            fault = f"(NOT {is_text} AND NOT {missing})"
        else:
            fault = f"(NOT {there} OR {is_empty(segment)})"
        absent = f"CASE WHEN {is_text} THEN CAST(NULL AS VARCHAR) ELSE {value} END"
        return Part(
            f"CASE WHEN {there} THEN {segment} ELSE {absent} END",
            hole=NO if tree.of.optional else self.is_empty(value),
            fault=fault,
        )

    def _time(self, tree: Time) -> Part:
        form = tree.form or form_of(tree.of)
        if isinstance(tree.of, Path):
            column = self.value(tree.of)
            inner = self._path(tree.of)
            at, nothing = self.moment(column, form), self.is_empty(column)
        else:
            inner = self.part(tree.of)
            at, nothing = from_number(f"({inner.number})", form), f"(({inner.number}) IS NULL)"
        if tree.width > 1:
            width = tree.width
            at = f"({at} - (({at} % {width}) + {width}) % {width})"
        fault = any_of([inner.fault, f"(NOT {nothing} AND {at} IS NULL)"])
        if inner.hole != NO:
            fault = f"(NOT {inner.hole} AND {fault})"
        return Part(
            f"CASE WHEN {nothing} THEN {inner.value} ELSE CAST({at} AS VARCHAR) END",
            hole=inner.hole,
            fault=fault,
            doubt=inner.doubt,
            number=f"CASE WHEN NOT {nothing} THEN {at} END",
        )

    def _max(self, tree: Max) -> Part:
        numbers, faults, doubts = [], [], []
        optional = True
        for one in tree.of:
            inner = self.part(one)
            optional = optional and inner.hole == NO
            if isinstance(one, Path):
                column = self.value(one)
                number, nothing = self.moment(column, "order"), self.is_empty(column)
                faults.append(f"({inner.fault} OR (NOT {nothing} AND {number} IS NULL))")
            else:
                number = f"({inner.number})"
                bounded = f"({number} IS NOT NULL AND ABS({number}) > {MAX_ORDER})"
                faults.append(any_of([inner.fault, bounded]))
            numbers.append(number)
            doubts.append(inner.doubt)
        lowest = -(2**62)
        largest = ", ".join(f"COALESCE({number}, {lowest})" for number in numbers)
        found = " OR ".join(f"{number} IS NOT NULL" for number in numbers)
        top = f"CASE WHEN {found} THEN GREATEST({largest}, {lowest}) END"
        return Part(
            f"CAST({top} AS VARCHAR)",
            hole=NO if optional else f"({top} IS NULL)",
            fault=any_of(faults),
            doubt=any_of(doubts),
            number=top,
        )

    def _each(self, tree: Each) -> Part:
        value = self.value(tree.of)
        items = f"EO_ITEMS({self.json(tree.of.root, tree.of.steps)})"
        if tree.fields:
            texts = [self._field(field.steps, optional=field.optional) for field in tree.fields]
            item = "'[' || " + " || ',' || ".join(texts) + " || ']'"
        else:
            item = self._item("EO_TEXT(x)", f"NOT {is_empty('EO_TEXT(x)')}")
        made = f"LIST_SORT(LIST_TRANSFORM({items}, x -> {item}))"
        text = f"('[' || ARRAY_TO_STRING({made}, ',') || ']')"
        nothing = f"({value} IS NULL OR {value} = 'null')"
        # Our marks are outside of strings: the strings are removed first.
        marks = f"""REGEXP_REPLACE({text}, '"([^"\\\\]|\\\\.)*"', '', 'g')"""
        empty_list = NO if tree.of.optional else f"COALESCE({value} = '[]', FALSE)"
        return Part(
            f"CASE WHEN {nothing} THEN {value} ELSE {text} END",
            hole=any_of([NO if tree.of.optional else self.is_empty(value), empty_list]),
            fault=f"(NOT {nothing} AND COALESCE({marks} LIKE '%!%', TRUE))",
            doubt=f"COALESCE({marks} LIKE '%?%', FALSE)",
        )

    def _field(self, steps: Steps, *, optional: bool) -> str:
        value = f"EO_TEXT(EO_BELOW(x, '{path(self.dialect.name, steps)}'))"
        return self._item(value, "TRUE" if optional else f"NOT {is_empty(value)}")

    def _item(self, value: str, fits: str) -> str:
        """Return a value in a list; `!` if it is not allowed there, `?` if SQL is in doubt."""
        return f"""CASE WHEN NOT {fits} OR SUBSTR({value}, 1, 1) IN ('{{', '[') THEN '!'
          WHEN {value} IS NULL THEN {ABSENT_PART}
          WHEN {is_inexact(value)} THEN '?' ELSE {canon(value)} END"""

    def at(self, key: Key, tree: Expression) -> tuple[str, str]:
        """Return the event's own time, and whether a part of the key is missing because of it."""
        part = self.part(tree)
        if isinstance(tree, Path):
            column = self.value(tree)
            found, nothing = self.moment(column, ""), self.is_empty(column)
        else:
            form = form_of(tree)
            found, nothing = from_number(f"({part.number})", form), f"(({part.number}) IS NULL)"
        at = f"CASE WHEN NOT {nothing} AND NOT {part.fault} THEN {found} END"
        if not key.prefixed or key.rule.missing == "invalid":
            return at, NO
        outside = f"NOT COALESCE({found} BETWEEN {EARLIEST_EVENT} AND {LATEST_EVENT}, FALSE)"
        return at, f"({part.fault} OR (NOT {nothing} AND {outside}))"

    def order(self, key: Key, tree: Expression) -> tuple[str, Part]:
        """Return the order of a version, and its part of the key."""
        part = self.part(tree)
        if isinstance(tree, Path):
            column = self.value(tree)
            number = self.moment(column, "order")
            dated = f"REGEXP_MATCHES({column}, '^\".+-.*\"$')"
        else:
            number = f"CASE WHEN ABS({part.number}) <= {MAX_ORDER} THEN {part.number} END"
            dated = "TRUE" if isinstance(tree, Time) else NO
        faults = [part.fault, f"({number} IS NULL)"]
        if key.rule.missing != "invalid" and dated != NO:
            outside = f"NOT {number} BETWEEN {EARLIEST_EVENT} AND {LATEST_EVENT}"
            faults.append(f"COALESCE({dated} AND {outside}, FALSE)")
        return number, part._replace(fault=any_of(faults))
