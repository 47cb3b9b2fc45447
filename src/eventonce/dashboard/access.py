"""Access to the dashboard: viewers, operators, and protection against requests of other sites.

If names and passwords are configured, a browser asks for them. Otherwise a link with a random
token, which is printed at the start, gives access from this machine alone.
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

MIN_PASSWORD: Final = 8
"""The fewest characters of a password: a shorter one is soon guessed."""

WRONG_PASSWORD_WAIT: Final = 1.0
"""Seconds until the answer to a wrong password: they slow down guessing."""

TOKEN_FIELD: Final = "token"  # noqa: S105  the name of a field, and no secret
SAFE_METHODS: Final = ("GET", "HEAD")

NO_LINK: Final = (
    "Open the link that eventonce printed when the dashboard started. Each start has a new one."
)
TWO_LENGTHS: Final = "A request with two lengths is refused."
OTHER_SITE: Final = "Another site sent this request; it is refused."
NO_OPERATOR: Final = "You may look and not act: [dashboard] operators names those who may."
VALUES_HIDDEN: Final = "You may not read whole reasons and subjects, so you may not search in them."
VALUE_FIELDS: Final = ("reason", "subject")
"""The fields of a search that contain values of events."""
OTHER_HOST: Final = (
    "Without [dashboard] operators or viewers, the dashboard is for this machine: ask for it under "
    "127.0.0.1 or localhost."
)


class Person(NamedTuple):
    """A viewer or an operator."""

    name: str
    role: Role
    sees_values: bool
    """Whether this person sees the content of events, which names people and their numbers."""

    @property
    def may_act(self) -> bool:
        """Whether this person may act on dead letters."""
        return self.role == "operator"

    def reason(self, text: str) -> str:
        """Return a reason as this person may read it."""
        return text if self.sees_values else veiled(text)

    def subject(self, text: str) -> str:
        """Return the subject of a state as this person may read it; a digest reveals nothing."""
        return text if self.sees_values or DIGEST.fullmatch(text) else ""

    def check_queue(self) -> None:
        """Refuse viewers to read a queue: each message counts as received."""
        if not self.may_act:
            raise HTTPException(403, "Reading the queue changes it: only operators may do that")

    def may_search(self, field: str) -> bool:
        """Whether this person may search by this field. A search by parts of a reason or by
        subjects would reveal a telephone number, guessed digit by digit."""
        return self.sees_values or field not in VALUE_FIELDS

    def check_search(self, fields: Mapping[str, str]) -> None:
        """Refuse a search by a field that this person may not search by."""
        if not all(self.may_search(name) for name, value in fields.items() if value):
            raise HTTPException(403, VALUES_HIDDEN)


def person_of(request: Request) -> Person:
    """Return the person who sent the request."""
    person: Person = request.state.person
    return person


def check_names(settings: DashboardTable) -> None:
    """Raise ConfigError if a name has two roles."""
    twice = settings.viewers.keys() & settings.operators.keys()
    if twice:
        raise ConfigError(f"dashboard: {min(twice)!r} is a viewer and an operator: choose one")


def check_host(settings: DashboardTable, host: str) -> None:
    """Raise ConfigError if this address can be reached from other machines and there are no
    passwords. A host name is not judged, only an address."""
    if settings.viewers or settings.operators or is_local(host) is not False:
        return
    raise ConfigError(
        f"dashboard: {host} can be reached from other machines, and there is no password. Set "
        'operators or viewers in [dashboard], such as operators = { ann = "${ANN_PASSWORD}" }; or '
        "listen on 127.0.0.1"
    )


class Access:
    """The people who have access, by password or by link."""

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
                if len(password) < MIN_PASSWORD:
                    raise ConfigError(
                        f"{place}: the password of {name!r} needs {MIN_PASSWORD} characters or more"
                    )
                sees = role == "operator" or settings.viewers_see_values
                self._people.append((digest(known), Person(name, role, sees)))
        check_names(settings)
        self._token = secrets.token_urlsafe(24)
        self._holder = Person(f"{user()}, by link", "operator", sees_values=True)

    def link(self, url: str) -> str:
        """Return the address to print; without passwords, it has the token."""
        return url if self._people else f"{url}?{urlencode({TOKEN_FIELD: self._token})}"

    def person(self, headers: Headers, port: int) -> Person | None:
        """Return the person who sent these headers; None if unknown."""
        if self._people:
            given = basic(headers.get("authorization", ""))
            found = [person for known, person in self._people if among(given, [known])]
            return found[0] if found else None
        return self._holder if self._fits(_cookie(headers, port)) else None

    def refusal(self, query: str, path: str, port: int) -> Response:
        """Return the response to an unknown person; to the printed link, the page that sets the
        cookie."""
        if self._people:
            challenge = {"www-authenticate": 'Basic realm="eventonce", charset="UTF-8"'}
            return _page(401, "A name and a password are needed.", headers=challenge)
        fields = parse_qs(query)
        if not self._fits(fields.pop(TOKEN_FIELD, [""])[0]):
            return _page(401, NO_LINK)
        rest = urlencode(fields, doseq=True)
        path = quote(f"/{path.lstrip('/')}")
        # A page with a refresh, not a redirect: after a click on another site, the browser would
        # not send a SameSite=Strict cookie with the redirected request.
        to = f"{path}?{rest}" if rest else path
        answer = _page(200, "Welcome.", leads_to=to)
        answer.set_cookie(
            _name(port), self._token, httponly=True, samesite="strict", path="/", max_age=None
        )
        return answer

    @property
    def by_link(self) -> bool:
        """Whether there are no passwords, so that the link gives access."""
        return not self._people

    def _fits(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())


class Guard:
    """The middleware that admits the people of `Access` (`request.state.person`), and accepts
    actions only of operators and from pages of the dashboard itself."""

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
            # A proxy may find another end of the body: request smuggling.
            return _page(400, TWO_LENGTHS, headers={"connection": "close"})
        port = (scope.get("server") or ("", 0))[1]
        if self._access.by_link and not _is_local(headers.get("host", "")):
            return _page(403, OTHER_HOST)
        acting = scope["method"] not in SAFE_METHODS
        if (acting and not _same_origin(headers)) or _is_embedded(headers):
            return _page(403, OTHER_SITE)
        person = self._access.person(headers, port)
        if person is None:
            query = scope.get("query_string", b"").decode("latin-1")
            return self._access.refusal(query, scope["path"], port)
        if acting and not person.may_act:
            return _page(403, NO_OPERATOR)
        scope.setdefault("state", {})["person"] = person
        return None


def _has_password(scope: Scope) -> bool:
    return "authorization" in Headers(scope=scope)


def _same_origin(headers: Headers) -> bool:
    """Whether a page of the dashboard sent this request. Without TLS a browser may omit
    `Sec-Fetch-Site`, but sends `Origin`. Only the host of the origin is compared, because a proxy
    may have changed the scheme."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    try:
        origin = urlsplit(headers.get("origin", ""))
    except ValueError:
        return False
    return bool(origin.netloc) and origin.netloc.lower() == headers.get("host", "").lower()


def _is_embedded(headers: Headers) -> bool:
    """Whether a page of another site embeds this request, for example as a picture. Reading may
    have a cost, too, such as a receive of the queue."""
    site = headers.get("sec-fetch-site", "same-origin")
    elsewhere = site not in ("same-origin", "none")
    return elsewhere and headers.get("sec-fetch-dest") != "document"


def _is_local(host: str) -> bool:
    """Whether this `Host` is a name of this machine. Any other name may be DNS rebinding: a site
    whose name resolves to this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name(port: int) -> str:
    """Return the name of the cookie. It has the port, because cookies ignore ports."""
    return f"eventonce-{port}"


def _cookie(headers: Headers, port: int) -> str:
    # Other programs on this machine set cookies, too, and some are malformed: they are ignored.
    pairs = (pair.partition("=") for pair in headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name.strip() == _name(port)), "")


def _page(
    status: int, said: str, *, headers: dict[str, str] | None = None, leads_to: str = ""
) -> Response:
    """Return a page without any data."""
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
