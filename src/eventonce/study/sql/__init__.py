"""Rules as SQL: the key of every event of a table, the rank of each copy, and the row that counts.

`statement` makes the tables of the query, `parts` the expressions of the rules, `law` decides on
the rows of a key, and `dialects` has the expressions in which the dialects differ. If SQL may
compare two values in another way than the engine, the row is in doubt: it is not judged, and it
counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from eventonce.errors import ConfigError, module_of
from eventonce.rules.rule import Rule
from eventonce.rules.ruleset import TRANSPORT
from eventonce.study.arrivals import LONGEST_EVENT
from eventonce.study.sql.dialects import DIALECTS, Dialect
from eventonce.study.sql.parts import canon, empty
from eventonce.study.sql.statement import Relation, Statement


def lines_of(file: str) -> Relation:
    """Return the lines of a file, in order; only for DuckDB."""
    name = file.replace("'", "''")
    columns = "{'event': 'VARCHAR'}"
    lines = (
        f"READ_CSV('{name}', delim = CHR(1), header = FALSE, quote = '', escape = '', "
        f"auto_detect = FALSE, columns = {columns}, max_line_size = {LONGEST_EVENT})"
    )
    numbered = f"(SELECT event, ROW_NUMBER() OVER () AS line FROM {lines}) AS lines"
    return Relation(numbered, place="line", keep=("line",))


def query(rules: Sequence[Rule], dialect: str, source: Relation, view: str = "") -> str:
    """Return the query, or the statement that makes it a view."""
    sqlglot = module_of("study", "sqlglot", "sql needs")
    words = DIALECTS[dialect]
    for rule in rules:
        _check(rule)
    text = Statement([*rules, TRANSPORT[-1]], words, source).text()
    try:
        parsed = sqlglot.parse_one(text, read="duckdb")
    except sqlglot.errors.SqlglotError:
        raise ConfigError(
            "sql: the query cannot be parsed: --table, --column and --arrived must be SQL of "
            "DuckDB, also for another dialect, and --keep the name of a column"
        ) from None
    tree = _in_dialect(sqlglot, parsed, words)
    if dialect == "snowflake":
        for cast in tree.find_all(sqlglot.exp.TryCast):
            cast.set("requires_string", True)
    made: str = tree.sql(dialect, pretty=True)
    return f"CREATE VIEW {view} AS\n{made}" if view else made


def _check(rule: Rule) -> None:
    """Refuse a rule that a query cannot express."""
    if rule.also:
        raise ConfigError(
            f"sql: rule {rule.name!r} has `also`, which asks a store what it knows from before; "
            "a table has no before: leave `also` out"
        )
    if rule.on_replay == "report":
        raise ConfigError(
            f"sql: rule {rule.name!r} only reports replays, so that whether one counts depends on "
            "a store: leave `on_replay` out"
        )
    if rule.sliding and rule.verify:
        raise ConfigError(
            f"sql: rule {rule.name!r} has `sliding` and `verify`: a window that starts again with "
            "every copy but not with a conflict cannot be expressed in SQL. Remove one of them"
        )


def _in_dialect(sqlglot: Any, tree: Any, dialect: Dialect) -> Any:
    """Return the tree with the expressions of the dialect in place of our functions."""
    exp = sqlglot.exp
    templates = {
        "EO_EMPTY": sqlglot.parse_one(empty("a", dialect), read="duckdb"),
        "EO_CANON": sqlglot.parse_one(canon("a"), read="duckdb"),
    }
    for name, text in dialect._asdict().items():
        if name not in ("name", "wide_spaces"):
            templates[f"EO_{name.upper()}"] = sqlglot.parse_one(text, read=dialect.name)

    def spoken(name: str, arguments: Sequence[Any]) -> Any:
        first, *others = arguments
        if name == "EO_WITHOUT" and dialect.name == "duckdb":
            # A patch with null for these fields.
            nulls = json.dumps({other.name: None for other in others}, ensure_ascii=False)
            others = [exp.Literal.string(nulls)]
        plain = isinstance(first, exp.Column | exp.Func | exp.Literal)
        found = templates[name].copy()
        for column in list(found.find_all(exp.Column)):
            if column.name == "a" and not column.table:
                column.replace(first.copy() if plain else exp.paren(first.copy()))
            elif column.name == "b" and not column.table:
                column.replace(others[0].copy() if len(others) == 1 else exp.Tuple(expressions=[]))
        for listed in found.find_all(exp.In):
            if len(others) > 1:
                listed.set("expressions", [other.copy() for other in others])
        return found

    root = exp.paren(tree)
    for _ in range(2):  # a template may contain our functions too
        # The innermost functions first.
        for node in reversed(list(root.find_all(exp.Anonymous))):
            if node.name.upper() in templates:
                node.replace(spoken(node.name.upper(), node.expressions))
    return root.this
