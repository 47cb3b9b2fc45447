"""The statement of a query, for DuckDB with our functions: tables that each read the one before,
from the rows of a relation to the keys of their events. `law` has the tables after them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from eventonce.errors import ConfigError
from eventonce.rules.claims import compiled, content_trees
from eventonce.rules.expressions import Path, made_optional, parse, parse_path
from eventonce.rules.instants import SECONDS_BELOW
from eventonce.rules.readings import FALLBACKS
from eventonce.rules.rule import Match, Rule
from eventonce.study.sql.dialects import Dialect, literal, path
from eventonce.study.sql.law import INEXACT_NUMBERS, judged
from eventonce.study.sql.parts import (
    ABSENT_PART,
    CONTENT_WANTED,
    NO,
    QUESTIONS,
    Columns,
    Part,
    all_of,
    any_of,
    from_iso,
    instant,
    is_empty,
    order,
)

_ORGANISATION: Final = '^"aws[.]partner/genesys[.]com([.]test)?/cloud/([^/]+)(/.*)?"$'
_LONGEST_SOURCE: Final = 500


class Relation(NamedTuple):
    """The SQL relation with the events."""

    table: str
    """The name of a table or view, or SQL for FROM."""
    column: str = "event"
    """The column with the JSON of an event, or SQL that gives it."""
    arrived: str = ""
    """The column with the arrival in milliseconds, or SQL that gives it; if it is empty or NULL,
    the arrival in the line of a capture is used."""
    place: str = ""
    """SQL that orders rows with the same arrival; their text if it is empty."""
    keep: tuple[str, ...] = ()
    """Columns of the table that are kept in the result."""


class _Made(NamedTuple):
    """One rule as SQL."""

    rule: Rule
    fits: str
    complete: str
    key: str
    doubt: str
    """Whether the key is in doubt."""
    vague: str
    """Whether the content or order, which tells versions of one key apart, is in doubt."""
    order: str
    at: str
    content: str
    otherwise: str
    """The kind of key of last resort, for an event that lacks a part; NULL for none."""
    other_key: str
    other_doubt: str


class Statement:
    """The tables of one query; each reads the one before."""

    def __init__(self, rules: Sequence[Rule], dialect: Dialect, source: Relation) -> None:
        self.dialect = dialect
        self.source = source
        self.columns = Columns(dialect)
        self.rules = [self._made(number, rule) for number, rule in enumerate(rules)]

    def text(self) -> str:
        """Return the query for DuckDB with our functions."""
        # Under other names: a column of the relation may have the name of a column below.
        kept = {f"kept_{number}": column for number, column in enumerate(self.source.keep)}
        tables = {
            "read_rows": self._read(kept),
            "unpacked": self._unpacked(),
            "enveloped": self._enveloped(),
            "valued": self._valued(),
            "looked": self._looked(),
            "dated": self._dated(),
            "chosen": self._chosen(),
            "filled": f"SELECT *{self._contents(last_resort=False)} FROM chosen",
            "tried": self._tried(),
            "rescued": f"SELECT *{self._contents(last_resort=True)} FROM tried",
            "keyed": self._keyed(kept),
            **judged(kept),
        }
        *named, last = tables.items()
        steps = ",\n".join(f"{name} AS ({text})" for name, text in named)
        return f"WITH {steps}\n{last[1]}"

    def _read(self, kept: Mapping[str, str]) -> str:
        source = self.source
        columns = "".join(f", {column} AS {name}" for name, column in kept.items())
        arrived = f"CAST({source.arrived} AS BIGINT)" if source.arrived else "CAST(NULL AS BIGINT)"
        place = source.place or "0"
        return (
            f"SELECT {source.column} AS event, {arrived} AS told, {place} AS place, "
            f"EO_PARSED({source.column}) AS document{columns} FROM {source.table}"
        )

    def _path(self, *steps: str) -> str:
        return f"'{path(self.dialect.name, steps)}'"

    def _unpacked(self) -> str:
        """Return the table with the event and the arrival taken out of a line of a capture."""

        def text(name: str) -> str:
            return f"EO_TEXT(EO_BELOW(document, {self._path(name)}))"

        carried = f"({text('eventonce')} IS NOT NULL AND {text('event')} IS NOT NULL)"
        return f"""SELECT *, document IS NULL AS unread,
          COALESCE(told, CASE WHEN {carried} THEN TRY_CAST({text("arrived")} AS BIGINT) END)
            AS arrived,
          CASE WHEN {carried} THEN EO_BELOW(document, {self._path("event")}) ELSE document END
            AS doc,
          CASE WHEN {carried} THEN CASE WHEN REGEXP_MATCHES({text("id")}, '^-?[0-9]+$')
            THEN '"' || {text("id")} || '"' WHEN SUBSTR({text("id")}, 1, 1) = '"'
            THEN {text("id")} END END AS carrier_id,
          {carried} AND (COALESCE({text("headers")}, '{{}}') <> '{{}}'
            OR {text("part")} IS NOT NULL) AS headed
          FROM read_rows"""

    def _enveloped(self) -> str:
        def text(*steps: str) -> str:
            return f"EO_TEXT(EO_BELOW(doc, {self._path(*steps)}))"

        def said(name: str) -> str:
            return f"CASE WHEN {text(name)} <> '\"\"' THEN {text(name)} END"

        id_ = f"""CASE WHEN {is_empty(text("id"))} AND NOT {is_empty("carrier_id")}
          THEN carrier_id ELSE {said("id")} END"""
        odd = any_of(
            [
                f"COALESCE(SUBSTR({text(name)}, 1, 1) <> '\"', FALSE)"
                for name in ("id", "source", "time", "replay-name")
            ]
        )
        no_envelope = f"""(COALESCE(SUBSTR({text("detail-type")}, 1, 1) <> '"', TRUE)
          OR {text("detail-type")} = '""'
          OR COALESCE(SUBSTR({text("detail")}, 1, 1) <> '{{', TRUE))"""
        return f"""SELECT *,
          {id_} AS its_id, {said("source")} AS its_source, {said("detail-type")} AS its_type,
          {said("time")} AS its_time, {said("replay-name")} AS its_replay,
          {text("detail", "eventBody")} IS NOT NULL AS has_body,
          CASE WHEN REGEXP_MATCHES({text("source")}, '{_ORGANISATION}')
            THEN '"' || REGEXP_EXTRACT({text("source")}, '{_ORGANISATION}', 2) || '"' END
            AS its_org,
          CASE WHEN unread THEN 'no JSON, or JSON that may be read in two ways'
            WHEN {no_envelope} THEN 'no event in the envelope of EventBridge'
            WHEN {odd} OR headed THEN 'an envelope with more than EventBridge writes'
            WHEN LENGTH({text("source")}) > {_LONGEST_SOURCE} THEN 'a source of that length'
            WHEN EO_SUSPECT(event) {self._twice()} THEN 'JSON that may be read in two ways'
            END AS doubt
          FROM unpacked"""

    def _twice(self) -> str:
        """Return a condition for two fields with one name: DuckDB takes the first, the engine the
        last; the other dialects do not read such JSON at all."""
        if self.dialect.name != "duckdb":
            return ""
        objects = {("detail",), ("detail", "eventBody"), ()}
        for root, steps in self.columns.values:
            for size in range(len(steps)):
                if root == "envelope":
                    objects.add(steps[:size])
                else:
                    objects.add(("detail", *steps[:size]))
                if root == "body":
                    objects.add(("detail", "eventBody", *steps[:size]))
        checks = []
        for steps in sorted(objects):
            keys = f"JSON_KEYS(doc, {self._path(*steps)})"
            checks.append(f"COALESCE(LEN({keys}) <> LEN(LIST_DISTINCT({keys})), FALSE)")
        return f"OR {any_of(checks)}"

    def _valued(self) -> str:
        """Return the table with the text of every value that a rule reads."""
        values = "".join(
            f",\n  EO_TEXT({self.columns.json(root, steps)}) AS {column}"
            for (root, steps), column in self.columns.values.items()
        )
        return f"SELECT *{values} FROM enveloped"

    def _looked(self) -> str:
        """Return the table with the answers to repeated questions about values."""
        looks = "".join(
            f",\n  {QUESTIONS[question](column)} AS {name}"
            for (question, column), name in self.columns.looks.items()
        )
        return f"SELECT *{looks} FROM valued"

    def _dated(self) -> str:
        """Return the table with the instants of times that are texts."""
        made = "".join(
            f",\n  {from_iso(column)} AS {name}" for column, name in self.columns.instants.items()
        )
        return f"SELECT *{made} FROM looked"

    def _chosen(self) -> str:
        """Return the table with the first rule that matches, and all times and orders."""
        fits = " ".join(f"WHEN {made.fits} THEN {number}" for number, made in enumerate(self.rules))
        instants = self.columns.instants
        moments = "".join(
            f",\n  {order(column, instants[column])} AS {name}"
            if form == "order"
            else f",\n  {instant(column, form, instants[column])} AS {name}"
            for (column, form), name in self.columns.moments.items()
        )
        number = f"CASE WHEN doubt IS NULL THEN CASE {fits} END END"
        return f"SELECT *{moments},\n  {number} AS rule_number FROM dated"

    def _tried(self) -> str:
        """Return the table that says whether the key is complete, or which last resort is used."""
        way = f"""CASE WHEN {self._by_rule(lambda one: one.complete)}
            THEN {self._by_rule(lambda one: f"'{one.rule.kind}'")}
          ELSE {self._by_rule(lambda one: one.otherwise)} END"""
        return f"SELECT *, CASE WHEN rule_number IS NOT NULL THEN {way} END AS way FROM filled"

    def _keyed(self, kept: Iterable[str]) -> str:
        """Return the table with key and version of every event, also by a key of last resort."""
        by = self._by_rule
        version = by(lambda one: one.order)
        return f"""SELECT {", ".join(("event", "place", *kept))}, arrived, way,
          {by(lambda one: literal(one.rule.name), "NULL")} AS rule,
          CASE WHEN way IN ('fact', 'state') THEN {by(lambda one: one.key)}
            WHEN way IN ('id', 'hash') THEN {by(lambda one: one.other_key)} END AS own_key,
          CASE WHEN way = 'state' THEN {version} END AS version,
          CASE WHEN way = 'state' THEN COALESCE({by(lambda one: one.at)},
            CASE WHEN {version} >= {SECONDS_BELOW} THEN {version} END) END AS own_time,
          CASE WHEN way IN ('fact', 'state', 'hash') THEN {by(lambda one: one.content)} END
            AS content,
          {by(lambda one: str(int(one.rule.unchanged_within)), "0")} AS unchanged_within,
          {by(lambda one: str(int(one.rule.remember)), "0")} AS remember,
          {by(lambda one: str(one.rule.sliding).upper(), "FALSE")} AS sliding,
          CASE WHEN doubt IS NOT NULL THEN doubt
            WHEN CASE WHEN way IN ('fact', 'state') THEN {by(lambda one: one.doubt, NO)}
              WHEN way IN ('id', 'hash') THEN {by(lambda one: one.other_doubt, NO)} ELSE FALSE END
            THEN '{INEXACT_NUMBERS}' END AS doubt,
          CASE WHEN way IN ('fact', 'state', 'hash') THEN {by(lambda one: one.vague, NO)}
            ELSE FALSE END AS vague
          FROM rescued"""

    def _by_rule(self, text_of: Callable[[_Made], str], otherwise: str = "NULL") -> str:
        """Return the SQL of the chosen rule, with one branch for each different text."""
        numbers: dict[str, list[int]] = {}
        for number, made in enumerate(self.rules):
            numbers.setdefault(text_of(made), []).append(number)
        if len(numbers) == 1:
            return next(iter(numbers))
        branches = " ".join(
            f"WHEN rule_number IN ({', '.join(map(str, some))}) THEN {text}"
            for text, some in numbers.items()
        )
        return f"CASE {branches} ELSE {otherwise} END"

    def _contents(self, *, last_resort: bool) -> str:
        """Return the columns with the content that the chosen rule reads, for its own key or for
        one of last resort."""
        made = ""
        for (last, text), (column, rules) in self.columns.contents.items():
            if last == last_resort:
                wanted = f"rule_number IN ({', '.join(map(str, rules))})"
                if last:
                    wanted += " AND way IN ('id', 'hash')"
                made += f",\n  {text.replace(CONTENT_WANTED, wanted)} AS {column}"
        return made

    def _made(self, number: int, rule: Rule) -> _Made:
        columns = self.columns
        columns.rule = number
        key = compiled(rule, rule.key or rule.subject, rule.kind)
        ignored = tuple(parse_path(text) for text in rule.ignore)
        parts = [columns.part(tree, ignored) for tree in key.trees]
        contents = [columns.part(tree, ignored) for tree in content_trees(rule)]
        at, no_time = "CAST(NULL AS BIGINT)", NO
        if rule.at:
            at, no_time = columns.at(key, made_optional(parse(rule.at)))
        version, ordered = "CAST(NULL AS BIGINT)", Part("")
        if rule.order:
            version, ordered = columns.order(key, parse(rule.order))
        every = [*parts, *contents, ordered]
        lacking = [one for part in every for one in (part.hole, part.fault)] + [no_time]
        if key.sparse:
            nothing = all_of([part.says_nothing() for part in parts])
            lacking.append(f"({at} IS NULL AND {nothing})" if key.prefixed else nothing)
        start = f"COALESCE(CAST(({_hundredths(at)}) AS VARCHAR), '')" if key.prefixed else "''"
        replay = "COALESCE(its_replay, '')" if rule.on_replay == "force" else "''"
        head = f"COALESCE(its_org, '\"\"') || ',' || {replay}"
        scope = literal(json.dumps([rule.scope])) if rule.scope else "its_type"
        otherwise, other_key, other_doubt = self._last_resort(rule, ignored, head)
        return _Made(
            rule=rule,
            fits=_fits(rule, columns),
            complete=f"NOT {any_of(lacking)}",
            key=f"'[\"{rule.kind}\",' || {head} || ',' || {scope} || ',' || {start} || ',' || "
            f"{_listed(parts)} || ']'",
            doubt=any_of([part.doubt for part in parts]),
            vague=any_of([part.doubt for part in (*contents, ordered)]),
            order=version,
            at=at,
            content=_listed(contents) if contents else "CAST(NULL AS VARCHAR)",
            otherwise=otherwise,
            other_key=other_key,
            other_doubt=other_doubt,
        )

    def _last_resort(self, rule: Rule, ignored: Sequence[Path], head: str) -> tuple[str, str, str]:
        """Return the kind of key of last resort, that key, and whether it is in doubt."""
        ways, made, doubt = [], "CAST(NULL AS VARCHAR)", NO
        self.columns.last_resort = True
        for kind, texts in FALLBACKS[rule.missing]:
            if kind == "run":
                ways.append("ELSE 'run'")
                continue
            parts = [self.columns.part(parse(text), ignored) for text in texts]
            lacking = any_of([one for part in parts for one in (part.hole, part.fault)])
            ways.append(f"WHEN NOT {lacking} THEN '{kind}'")
            made = f"'[\"{kind}\",' || {head} || ',' || its_type || ',' || {_listed(parts)} || ']'"
            if kind == "hash":
                nothing = all_of([part.says_nothing() for part in parts])
                made = f"CASE WHEN NOT {nothing} THEN {made} END"
            doubt = any_of([part.doubt for part in parts])
        self.columns.last_resort = False
        way = f"CASE {' '.join(ways)} END" if ways else "CAST(NULL AS VARCHAR)"
        return way, made, doubt


def _listed(parts: Sequence[Part]) -> str:
    return " || ',' || ".join(f"COALESCE({part.value}, {ABSENT_PART})" for part in parts)


def _hundredths(at: str) -> str:
    """Return the beginning of a key: the four low bytes of the time in hundredths of a second."""
    hundredths = f"CAST(FLOOR(({at}) / 10.0) AS BIGINT)"
    return f"(({hundredths} % 4294967296) + 4294967296) % 4294967296"


def _fits(rule: Rule, columns: Columns) -> str:
    there = [f"NOT {columns.is_empty(columns.value(parse_path(text)))}" for text in rule.requires]
    return all_of([*_matches(rule.match), *there])


def _matches(match: Match) -> list[str]:
    found = []
    for globs, text in (
        (match.form, "'eventbridge'"),
        (match.source, "COALESCE(its_source, '\"\"')"),
        (match.type, "its_type"),
    ):
        if globs:
            found.append(any_of([_like(glob, text) for glob in globs]))
    return found


def _like(glob: str, text: str) -> str:
    if "\\" in glob or '"' in glob or not glob.isprintable():
        raise ConfigError(f"sql: the glob {glob!r} cannot be expressed in SQL")
    glob = glob.replace("'", "''")
    quote = "" if text.startswith("'") else '"'
    if "*" not in glob:
        return f"{text} = '{quote}{glob}{quote}'"
    escaped = glob.replace("!", "!!").replace("%", "!%").replace("_", "!_").replace("*", "%")
    ending = " ESCAPE '!'" if escaped != glob.replace("*", "%") else ""
    return f"{text} LIKE '{quote}{escaped}{quote}'{ending}"
