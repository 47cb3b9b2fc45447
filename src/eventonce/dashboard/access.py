"""Access to the dashboard: who may look, who may act, and that no other site acts in their name.

People are asked for a name and a password if some are configured. Otherwise a link with a random
token, which is printed at the start, lets in whoever has it, from this machine alone.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import secrets
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from eventonce.audit import user
from eventonce.config import DashboardTable
from eventonce.errors import ConfigError
from eventonce.history.digests import DIGEST
from eventonce.letters.reasons import veiled
from eventonce.markup import tag
from eventonce.web.credentials import among, basic, digest, is_local, pair

log = logging.getLogger("eventonce.dashboard")

Role = Literal["viewer", "operator"]

SHORTEST: Final = 8
"""Characters of a password: a shorter one is soon guessed."""

WRONG_PASSWORD_WAIT: Final = 1.0
"""Seconds until a wrong password is answered: whoever guesses has to wait."""

TOKEN: Final = "token"  # noqa: S105  the name of a field, and no secret
SAFE: Final = ("GET", "HEAD")

NO_LINK: Final = (
    "Open the link that eventonce printed when the dashboard started. Each start has a new one."
)
TWO_LENGTHS: Final = "A request with two lengths is refused."
FOREIGN: Final = "This was asked for by another site, and is refused."
VIEWER: Final = "You may look and not act: [dashboard] operators names those who may."
HIDDEN: Final = "You may not read whole reasons and subjects, and so not search in them."
VALUES: Final = ("reason", "subject")
"""Fields of a search that have values of events."""
HOST: Final = (
    "Without [dashboard] operators or viewers, the dashboard is for this machine: ask for it under "
    "127.0.0.1 or localhost."
)


class Person(NamedTuple):
    """Somebody who was let in."""

    name: str
    role: Role
    sees_values: bool
    """Whether the content of events is shown, which names people and their numbers."""

    @property
    def may_act(self) -> bool:
        """Whether actions are offered and taken."""
        return self.role == "operator"

    def reason(self, text: str) -> str:
        """A reason as this person may read it."""
        return text if self.sees_values else veiled(text)

    def subject(self, text: str) -> str:
        """The subject of a state as this person may read it; a digest tells nothing."""
        return text if self.sees_values or DIGEST.fullmatch(text) else ""

    def check_queue(self) -> None:
        """Refuse the reading of a queue to whoever may not act: each message counts as received."""
        if not self.may_act:
            raise HTTPException(403, "To read the queue changes it: operators may do that")

    def may_search(self, field: str) -> bool:
        """Whether this field may be searched by: a part of a reason only by whoever may read
        reasons, because asked for one digit after the other it would tell a number; and a subject
        likewise, because a telephone number can be guessed."""
        return self.sees_values or field not in VALUES

    def check_search(self, fields: Mapping[str, str]) -> None:
        """Refuse a search by a field that may not be searched by."""
        if not all(self.may_search(name) for name, value in fields.items() if value):
            raise HTTPException(403, HIDDEN)


def person_of(request: Request) -> Person:
    """Whoever asks for this."""
    person: Person = request.state.person
    return person


def check_names(settings: DashboardTable) -> None:
    """ConfigError if somebody has two roles."""
    twice = settings.viewers.keys() & settings.operators.keys()
    if twice:
        raise ConfigError(f"dashboard: {min(twice)!r} is a viewer and an operator: choose one")


def check_host(settings: DashboardTable, host: str) -> None:
    """ConfigError if this address can be reached from elsewhere, and nobody is asked for a
    password. A name is not judged: only its address tells."""
    if settings.viewers or settings.operators or is_local(host) is not False:
        return
    raise ConfigError(
        f"dashboard: {host} can be reached from elsewhere, and nobody is asked for a password. Set "
        'operators or viewers in [dashboard], such as operators = { ann = "${ANN_PASSWORD}" }; or '
        "listen on 127.0.0.1"
    )


class Access:
    """Who is let in."""

    def __init__(self, settings: DashboardTable) -> None:
        self.settings = settings
        self._people: list[tuple[bytes, Person]] = []
        roles: list[tuple[Role, dict[str, str]]] = [
            ("viewer", settings.viewers),
            ("operator", settings.operators),
        ]
        for role, people in roles:
            for name, password in people.items():
                place = f"dashboard: {role}s"
                known = pair(place, name, password)
                if len(password) < SHORTEST:
                    raise ConfigError(
                        f"{place}: the password of {name!r} needs {SHORTEST} characters or more"
                    )
                sees = role == "operator" or settings.viewers_see_values
                self._people.append((digest(known), Person(name, role, sees)))
        check_names(settings)
        self._token = secrets.token_urlsafe(24)
        self._holder = Person(f"{user()}, by link", "operator", sees_values=True)

    def link(self, url: str) -> str:
        """The address to print: it lets in whoever has it, unless people have passwords."""
        return url if self._people else f"{url}?{urlencode({TOKEN: self._token})}"

    def person(self, headers: Headers, port: int) -> Person | None:
        """Whoever sent these headers; None for nobody known."""
        if self._people:
            given = basic(headers.get("authorization", ""))
            found = [person for known, person in self._people if among(given, [known])]
            return found[0] if found else None
        return self._holder if self._fits(_cookie(headers, port)) else None

    def refusal(self, query: str, path: str, port: int) -> Response:
        """The answer for nobody known; for the link it is the way in."""
        if self._people:
            challenge = {"www-authenticate": 'Basic realm="eventonce", charset="UTF-8"'}
            return _page(401, "A name and a password are needed.", headers=challenge)
        fields = parse_qs(query)
        if not self._fits(fields.pop(TOKEN, [""])[0]):
            return _page(401, NO_LINK)
        rest = urlencode(fields, doseq=True)
        path = quote(f"/{path.lstrip('/')}")
        # A page that leads on, not a redirect: the browser would leave out a cookie this strict
        # where the link stood on a page of another site.
        to = f"{path}?{rest}" if rest else path
        answer = _page(200, "Welcome.", leads_to=to)
        answer.set_cookie(
            _name(port), self._token, httponly=True, samesite="strict", path="/", max_age=None
        )
        return answer

    @property
    def by_link(self) -> bool:
        """Whether the link lets people in, and nobody has a password."""
        return not self._people

    def _fits(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())


class Guard:
    """Lets in whom `Access` knows, as `request.state.person`; and actions of operators, from pages
    of the dashboard itself."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._refusal(scope)
        if answer is not None and answer.status_code == 401 and _has_password(scope):
            client = (scope.get("client") or ("an unknown address",))[0]
            log.warning("the dashboard refused a wrong name or password from %s", client)
            await asyncio.sleep(WRONG_PASSWORD_WAIT)
        await (answer or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy may see its end elsewhere: the rest would be the begin of another's request.
            return _page(400, TWO_LENGTHS, headers={"connection": "close"})
        port = (scope.get("server") or ("", 0))[1]
        if self._access.by_link and not _is_local(headers.get("host", "")):
            return _page(403, HOST)
        acting = scope["method"] not in SAFE
        if (acting and not _same_origin(headers)) or _is_embedded(headers):
            return _page(403, FOREIGN)
        person = self._access.person(headers, port)
        if person is None:
            query = scope.get("query_string", b"").decode("latin-1")
            return self._access.refusal(query, scope["path"], port)
        if acting and not person.may_act:
            return _page(403, VIEWER)
        scope.setdefault("state", {})["person"] = person
        return None


def _has_password(scope: Scope) -> bool:
    return "authorization" in Headers(scope=scope)


def _same_origin(headers: Headers) -> bool:
    """Whether a page of the dashboard asked for this. A browser leaves out `Sec-Fetch-Site` where
    the dashboard is asked for without TLS, and then says `Origin`; a proxy may have changed the
    scheme, so that the host alone counts."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    try:
        origin = urlsplit(headers.get("origin", ""))
    except ValueError:
        return False
    return bool(origin.netloc) and origin.netloc.lower() == headers.get("host", "").lower()


def _is_embedded(headers: Headers) -> bool:
    """Whether a page of another site asks for this as a part of itself, such as a picture: a look
    may cost something too, and nobody sees the answer."""
    site = headers.get("sec-fetch-site", "same-origin")
    elsewhere = site not in ("same-origin", "none")
    return elsewhere and headers.get("sec-fetch-dest") != "document"


def _is_local(host: str) -> bool:
    """Whether this `Host` is a name of this machine: a name of a stranger that leads here is a way
    around the browser's borders between sites."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name(port: int) -> str:
    """The name of the cookie: cookies do not tell ports apart."""
    return f"eventonce-{port}"


def _cookie(headers: Headers, port: int) -> str:
    # Cookies of everything else on this machine come along, and some are none: they are let be.
    pairs = (pair.partition("=") for pair in headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name.strip() == _name(port)), "")


def _page(
    status: int, said: str, *, headers: dict[str, str] | None = None, leads_to: str = ""
) -> Response:
    """A page without anything that is watched."""
    refresh = tag("meta", http_equiv="refresh", content=f"0;url={leads_to}") if leads_to else None
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        refresh,
        tag("link", rel="icon", href="data:,"),
        tag("title", "eventonce"),
    )
    body = tag("body", tag("main", tag("h1", "eventonce"), tag("p", said)))
    return HTMLResponse(f"<!doctype html>\n{tag('html', head, body, lang='en')}\n", status, headers)
