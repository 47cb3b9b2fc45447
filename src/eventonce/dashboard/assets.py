"""The style and the scripts of the pages. Their paths have a hash of the content, so that browsers
may cache them for ever."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from eventonce.study.page.layout import style

SCRIPTS: Final = ("uPlot.iife.min.js", "dashboard.js")
STYLE: Final = "dashboard.css"
CONTENT_TYPES: Final = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
CACHE_FOR_EVER: Final = "private, max-age=31536000, immutable"


class Asset(NamedTuple):
    """A file, and its path with the hash of its content."""

    content: bytes
    path: str


@cache
def asset(name: str) -> Asset:
    """Return the file of this name. The style sheet joins those of reports, plots and pages."""
    folder = files("eventonce.dashboard").joinpath("static")
    content = folder.joinpath(name).read_bytes()
    if name == STYLE:
        plots = folder.joinpath("uPlot.min.css").read_bytes()
        content = b"\n".join([style().encode(), plots, content])
    return Asset(content, f"/static/{name}?v={sha256(content).hexdigest()[:12]}")


async def static(request: Request) -> Response:
    """Return one of the files."""
    name = request.path_params["name"]
    if name not in (*SCRIPTS, STYLE):
        raise HTTPException(404, "There is no such file")
    kind = CONTENT_TYPES[name.rpartition(".")[2]]
    headers = {"content-type": kind, "cache-control": CACHE_FOR_EVER}
    return Response(asset(name).content, headers=headers)
