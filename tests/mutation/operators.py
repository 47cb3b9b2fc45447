"""The mutation operators: every small change of a module's syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

_SWAPS: Final = """Eq NotEq; NotEq Eq; Is IsNot; IsNot Is; In NotIn; NotIn In;
Lt LtE GtE; LtE Lt Gt; Gt GtE LtE; GtE Gt Lt; Add Sub; Sub Add; Mult Div; Div Mult; FloorDiv Mult;
Mod Mult; Pow Mult; BitOr BitAnd; BitAnd BitOr; BitXor BitOr; LShift RShift; RShift LShift"""
SWAPS: Final = {first: others for first, *others in map(str.split, _SWAPS.split(";"))}
"""For each operator those that take its place."""
CALLED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
TYPES: Final = ("annotation", "returns", "decorator_list", "bases")
"""Parts of the tree that say something about types, or about a whole class or function."""


class Mutant(NamedTuple):
    """One change of one module."""

    name: str
    """The same as long as the function and what is changed keep their names."""
    file: str
    function: str
    """The outermost function around the change; empty for what is run at the import."""
    body: range
    """The lines of that function."""
    line: int
    change: str
    tree: ast.Module
    """The tree of the module, which all its mutants share."""
    parent: ast.AST
    field: str
    at: int | None
    new: ast.AST

    def plant(self) -> ast.Module:
        """The changed tree; for good, so only in a process of its own."""
        if self.at is None:
            setattr(self.parent, self.field, self.new)
        else:
            getattr(self.parent, self.field)[self.at] = self.new
        return ast.fix_missing_locations(self.tree)


def mutants(root: Path, file: str) -> list[Mutant]:
    """All changes of this file."""
    tree = ast.parse((root / file).read_text(encoding="utf-8"))
    found: dict[str, Mutant] = {}
    for function, body, parent, field, index, node in _nodes(tree, "", "", range(0)):
        for new in _changes(node):
            if not hasattr(new, "lineno"):
                ast.copy_location(new, node)
            line = getattr(node, "lineno", getattr(parent, "lineno", 0))
            change = _said(node, new)
            name = f"{file}:{function}: {change}"
            while name in found:
                name += " again"
            found[name] = Mutant(
                name, file, function, body, line, change, tree, parent, field, index, new
            )
    return list(found.values())


def _nodes(
    node: ast.AST, outer: str, function: str, body: range
) -> Iterator[tuple[str, range, ast.AST, str, int | None, ast.AST]]:
    """Every node below this one with its place, and the outermost function that it is run in."""
    for field, value in ast.iter_fields(node):
        if field in TYPES or (field == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        inside, lines = function, body
        is_body = field == "body" and not function
        if is_body and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = f"{outer}{node.name}"
            lines = range(node.lineno + 1, (node.end_lineno or 0) + 1)
        below = f"{outer}{node.name}." if isinstance(node, ast.ClassDef) else outer
        several = value if isinstance(value, list) else [value]
        for index, child in enumerate(several):
            if not isinstance(child, ast.AST) or _is_prose(child) or isinstance(child, ast.Assert):
                continue
            yield inside, lines, node, field, index if value is several else None, child
            yield from _nodes(child, below, inside, lines)


def _is_prose(node: ast.AST) -> bool:
    """Whether it is a docstring, or a text put together for people."""
    prose = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return prose or isinstance(node, ast.JoinedStr)


def _said(old: ast.AST, new: ast.AST) -> str:
    """The change in a line."""
    if isinstance(old, ast.Call) and isinstance(new, ast.Call):
        kept = {keyword.arg for keyword in new.keywords}
        for keyword in old.keywords:
            if keyword.arg not in kept:
                return f"{ast.unparse(old.func)}(…) without {ast.unparse(keyword)}"
    return f"{_text(old)}  ->  {_text(new)}"


def _text(node: ast.AST) -> str:
    lines = ast.unparse(node).split("\n")
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[1].strip()} …"


def _changes(node: ast.AST) -> Iterator[ast.AST]:  # noqa: PLR0912  a table
    """The nodes to put in the place of this one, one after the other."""
    match node:
        case ast.Compare():
            for at, op in enumerate(node.ops):
                for other in _swapped(op):
                    ops = [*node.ops[:at], other, *node.ops[at + 1 :]]
                    yield ast.Compare(node.left, ops, node.comparators)
        case ast.BoolOp():
            for at in range(len(node.values)):
                left = node.values[:at] + node.values[at + 1 :]
                yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
        case ast.UnaryOp(ast.Not() | ast.USub()):
            yield node.operand
        case ast.BinOp():
            for other in _swapped(node.op):
                yield ast.BinOp(node.left, other, node.right)
        case ast.IfExp():
            yield node.body
            yield node.orelse
        case ast.Constant():
            yield from _constants(node.value)
        case ast.Call():
            yield from _calls(node)
        case ast.comprehension():
            for at in range(len(node.ifs)):
                ifs = node.ifs[:at] + node.ifs[at + 1 :]
                yield ast.comprehension(node.target, node.iter, ifs, node.is_async)
        case ast.ExceptHandler() if not isinstance(node.body[-1], ast.Raise):
            yield ast.ExceptHandler(node.type, node.name, [ast.Raise()])
        case ast.stmt():
            yield from _statements(node)


def _swapped(operator: ast.AST) -> list[Any]:
    return [getattr(ast, name)() for name in SWAPS[type(operator).__name__]]


def _constants(value: object) -> Iterator[ast.AST]:
    match value:
        case bool():
            yield ast.Constant(not value)
        case int() | float():
            yield ast.Constant(value + 1)
        case bytes():
            yield ast.Constant(value + b"!")
        case str() if re.fullmatch(r"[a-z_]*", value):
            yield ast.Constant("mutant")


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    match node.func:
        case ast.Name(id="min" | "max" | "any" | "all" as name):
            yield ast.Call(ast.Name(CALLED[name], ast.Load()), node.args, node.keywords)
    for at, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            left = node.keywords[:at] + node.keywords[at + 1 :]
            yield ast.Call(node.func, node.args, left)


def _statements(node: ast.stmt) -> Iterator[ast.AST]:
    match node:
        case ast.If() if not isinstance(node.test, ast.Name) or node.test.id != "TYPE_CHECKING":
            for always in (True, False):
                yield ast.If(ast.Constant(always), node.body, node.orelse)
        case ast.While(ast.Constant()):
            pass
        case ast.While():
            yield ast.While(ast.Constant(value=False), node.body, node.orelse)
        case ast.For():
            yield ast.For(node.target, ast.Tuple([], ast.Load()), node.body, node.orelse)
        case ast.With(items=[ast.withitem(ast.Call(ast.Name("suppress")))]):
            yield ast.If(ast.Constant(value=True), node.body, [])
        case ast.Return() if not isinstance(node.value, ast.Constant):
            yield ast.Pass() if node.value is None else ast.Return(ast.Constant(None))
        case ast.AugAssign():
            yield ast.Pass()
            for other in _swapped(node.op):
                yield ast.AugAssign(node.target, other, node.value)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()
        case ast.AnnAssign(ast.Attribute(), value=ast.expr()):
            yield ast.Pass()
        case ast.Expr() | ast.Delete() | ast.Raise() | ast.Continue() | ast.Break():
            yield ast.Pass()
