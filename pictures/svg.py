"""The style that all pictures share: one look in light and dark, and no other file needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

LINE: Final = 17
"""Pixels from one line of text to the next."""

LOOK: Final = """
svg { --paper: #ffffff; --edge: #d0d7de; --ink: #1f2328; --soft: #59636e; --fill: #f6f8fa;
  --blue: #0969da; --green: #1a7f37; --red: #cf222e; --amber: #9a6700; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #14181f; --edge: #3d444d; --ink: #e6edf3; --soft: #9da7b3; --fill: #1f262f;
    --blue: #58a6ff; --green: #4cc25f; --red: #ff7b72; --amber: #e3b341; }
}
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink);
  white-space: pre; }
.code, .code text { font-family: ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
.label { font-size: 12px; fill: var(--soft); paint-order: stroke; stroke: var(--paper);
  stroke-width: 5px; stroke-linejoin: round; }
.name { font-weight: 600; font-size: 15px; }
.small { font-size: 12px; fill: var(--soft); }
.box { fill: var(--fill); stroke: var(--edge); stroke-width: 1.5; }
.arrow { fill: none; stroke: var(--soft); stroke-width: 1.5; marker-end: url(#head); }
.dashed { stroke-dasharray: 4 4; }
.head { fill: var(--soft); }
.blue { --edge: var(--blue); } .green { --edge: var(--green); }
.red { --edge: var(--red); } .amber { --edge: var(--amber); }
"""

HEAD: Final = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
    'markerHeight="8" orient="auto-start-reverse"><path class="head" d="M0 1 10 5 0 9z"/></marker>'
    "</defs>"
)


def page(width: int, height: int, title: str, parts: Iterable[str], *, look: str = "") -> str:
    """Return the whole picture; screen readers read its title."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n<style>{LOOK}{look}</style>\n{HEAD}\n"
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10" '
        'style="fill: var(--paper); stroke: var(--edge)"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def text(
    x: float, y: float, lines: str | Sequence[str], look: str = "", anchor: str = "middle"
) -> str:
    """Return lines of text with their middle at `y`."""
    rows = [lines] if isinstance(lines, str) else list(lines)
    first = y + 4.5 - LINE * (len(rows) - 1) / 2
    return "".join(
        f'<text x="{x:g}" y="{first + LINE * row:g}" class="{look}" text-anchor="{anchor}">'
        f"{escape(line)}</text>"
        for row, line in enumerate(rows)
    )


def box(x: float, y: float, width: float, height: float, colour: str = "") -> str:
    """Return a box around the point `x`, `y`."""
    return (
        f'<rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" height="{height:g}" '
        f'rx="9" class="box {colour}"/>'
    )


def arrow(path: str, *, dashed: bool = False) -> str:
    """Return an arrow along an SVG path."""
    return f'<path class="arrow{" dashed" if dashed else ""}" d="{path}"/>'
