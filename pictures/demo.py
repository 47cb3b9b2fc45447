"""A recording of `eventonce demo`: the command runs in a terminal, and its output is animated."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pictures.svg import page

COLUMNS: Final = 112
ACROSS: Final = 7.83
"""The width of a character in pixels; `textLength` makes it the same in every font."""
DOWN: Final = 18
LEFT: Final = 24
TOP: Final = 62
COMMAND: Final = "eventonce demo"
TYPED: Final = 0.06
"""Seconds for a typed letter; a line of output takes half as long again."""
COLOURS: Final = {"1": "bold", "31": "red", "32": "green", "33": "amber", "34": "blue"}

LOOK: Final = """
svg { --paper: #14181f; --edge: #3d444d; --ink: #dfe6ee; --soft: #9da7b3; --green: #4cc25f;
  --red: #ff7b72; --amber: #e3b341; --blue: #58a6ff; }
.bold { font-weight: 700; } .green { fill: var(--green); } .red { fill: var(--red); }
.amber { fill: var(--amber); } .blue { fill: var(--blue); }
.typed { animation: typed .01s step-end backwards; }
@keyframes typed { from { opacity: 0; } }
@media (prefers-reduced-motion: reduce) { .typed { animation: none; } }
"""


def draw() -> str:
    """Return the picture."""
    lines = recorded()
    prompt = [f'<text x="{LEFT}" y="{TOP}" class="green">$</text>']
    prompt += [
        _text(LEFT + ACROSS * (2 + place), TOP, letter, "", 0.6 + TYPED * place)
        for place, letter in enumerate(COMMAND)
        if letter != " "
    ]
    begun = 1.2 + TYPED * len(COMMAND)
    output: list[str] = []
    for row, line in enumerate(lines):
        y = TOP + DOWN * (row + 1.5)
        output += _line(line, y, begun + 1.5 * TYPED * row)
    lights = [
        f'<circle cx="{LEFT + 6 + 20 * place}" cy="24" r="6" style="fill: var(--{colour})"/>'
        for place, colour in enumerate(("red", "amber", "green"))
    ]
    height = round(TOP + DOWN * (len(lines) + 1.5)) + 6
    parts = [*lights, '<g class="code">', *prompt, *output, "</g>"]
    width = round(2 * LEFT + ACROSS * COLUMNS)
    return page(width, height, "What eventonce demo prints", parts, look=LOOK)


def recorded() -> list[str]:
    """Return the lines that the command writes to a terminal, with their colours."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "TERM": "xterm", "LANG": "C.UTF-8"}  # without COLUMNS, NO_COLOR, …
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen(
            COMMAND.split(), stdout=its, stdin=its, env=environment, cwd=folder
        ) as running,
    ):
        os.close(its)
        written = b"".join(_read(ours))
    os.close(ours)
    if running.returncode:
        raise SystemExit(f"{COMMAND} ended with {running.returncode}")
    return written.decode().replace("\r\n", "\n").rstrip("\n").split("\n")


def _read(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(terminal, 65_536)
        except OSError:  # raised on Linux when the last writer has closed
            return
        if not chunk:
            return
        yield chunk


def _line(line: str, y: float, after: float) -> Iterator[str]:
    """Yield the words of a line; wide gaps are not drawn, so that columns align in every font."""
    column, look = 0, ""
    for piece in re.split(r"(\x1b\[[\d;]*m)", line):
        if piece.startswith("\x1b"):
            codes = [COLOURS[code] for code in piece[2:-1].split(";") if code in COLOURS]
            look = " ".join([look, *codes]).strip() if codes else ""
            continue
        for words in re.finditer(r"\S+(?: \S+)*", piece):
            yield _text(LEFT + ACROSS * (column + words.start()), y, words[0], look, after)
        column += len(piece)


def _text(x: float, y: float, words: str, look: str, after: float) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:g}" class="typed {look}" textLength="{ACROSS * len(words):.1f}" '
        f'style="animation-delay: {after:.2f}s">{escape(words)}</text>'
    )
