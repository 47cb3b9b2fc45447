"""Access to the dashboard: admitted people, permitted actions, refused requests of other sites."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from eventonce.config import DashboardTable
from eventonce.dashboard.access import Access, Guard, check_host, person_of
from eventonce.errors import ConfigError
from eventonce.letters.reasons import veiled

HERE = "http://127.0.0.1:8090"
PEOPLE = DashboardTable(viewers={"vic": "vic-password"}, operators={"ann": "ann-pässword"})
SAME = {"sec-fetch-site": "same-origin"}


async def told(request: Request) -> Response:
    person = person_of(request)
    return JSONResponse([person.name, person.role, person.reason("no customer 'Eve'")])


class Client:
    """An HTTP client of an app, which keeps cookies as a browser does."""

    def __init__(self, app: Any, base_url: str = HERE) -> None:
        self._app = app
        self._base_url = base_url
        self.cookies = httpx.Cookies()

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(
                transport=transport, base_url=self._base_url, cookies=self.cookies
            ) as client:
                answer = await client.request(method, path, **given)
                self.cookies = client.cookies
                return answer

        return asyncio.run(ask())

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.request("GET", path, **given)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.request("POST", path, **given)


def asking(access: Access, base_url: str = HERE) -> Client:
    app = Starlette(
        routes=[Route("/{path:path}", told, methods=["GET", "POST", "PUT"])],
        middleware=[Middleware(Guard, access=access)],
    )
    return Client(app, base_url)


def basic(name: str, password: str) -> dict[str, str]:
    text = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"authorization": f"Basic {text}"}


def test_the_link_admits_its_user_and_sets_a_cookie_that_no_other_site_can_use() -> None:
    access = Access(DashboardTable())
    client = asking(access)
    refused = client.get("/letters")
    assert (refused.status_code, "Open the link" in refused.text) == (401, True)
    assert client.get("/?token=wrong").status_code == 401
    link = access.link(f"{HERE}/letters")
    welcome = client.get(f"{link}&rule=a%26b&token=second")
    assert welcome.status_code == 200
    assert re.findall('content="0;url=([^"]+)"', welcome.text) == ["/letters?rule=a%26b"]
    cookie = welcome.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    name, role, _ = client.get("/letters").json()
    assert (role, ", by link" in name) == ("operator", True)
    other = asking(Access(DashboardTable()))
    other.cookies = client.cookies
    assert other.get("/").status_code == 401, "of another start"


@pytest.mark.parametrize(
    "other", ['x={"a": "b"}', "no pair", 'q="a"b"', "a[0]=1", "=", "expires=1"]
)
def test_a_cookie_of_another_program_on_this_machine_does_not_cause_a_refusal(other: str) -> None:
    access = Access(DashboardTable())
    client = asking(access)
    cookie, _, _ = client.get(access.link(f"{HERE}/")).headers["set-cookie"].partition(";")
    answers = [
        asking(access).get("/", headers={"cookie": sent}).status_code
        for sent in (f"{other}; {cookie}", f"{cookie};{other}", other)
    ]
    assert answers == [200, 200, 401]


def test_the_link_leads_to_no_other_site() -> None:
    access = Access(DashboardTable())
    welcome = asking(access).get(access.link(f"{HERE}//evil.example/<b>"))
    assert re.findall('content="0;url=([^"]+)"', welcome.text) == ["/evil.example/%3Cb%3E"]


@pytest.mark.parametrize(
    ("credentials", "answer"),
    [
        ({}, 401),
        (basic("ann", "wrong"), 401),
        (basic("vic", "ann-pässword"), 401),
        ({"authorization": "Bearer x"}, 401),
        ({"authorization": "Basic ÿ"}, 401),
        (basic("vic", "vic-password"), ["vic", "viewer", "no customer …"]),
        (basic("ann", "ann-pässword"), ["ann", "operator", "no customer 'Eve'"]),
    ],
)
def test_people_are_admitted_by_their_passwords(credentials: dict[str, str], answer: Any) -> None:
    client = asking(Access(PEOPLE), "http://eventonce.example.com")
    given = client.get("/", headers={k: v.encode("latin-1") for k, v in credentials.items()})
    if answer == 401:
        assert given.status_code == 401
        assert given.headers["www-authenticate"].startswith("Basic ")
    else:
        assert given.json() == answer


def test_the_link_is_not_valid_when_people_have_passwords() -> None:
    access = Access(PEOPLE)
    assert access.link(f"{HERE}/") == f"{HERE}/"
    token = access._token
    assert asking(access).get(f"/?token={token}").status_code == 401
    client = asking(access)
    client.cookies.set("eventonce-8090", token)
    assert client.get("/").status_code == 401


def test_a_viewer_is_refused_every_action() -> None:
    client = asking(Access(PEOPLE))
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        refused = client.request(method, "/", headers=SAME | basic("vic", "vic-password"))
        assert (refused.status_code, "may look and not act" in refused.text) == (403, True)
    acted = client.post("/", headers=SAME | basic("ann", "ann-pässword"))
    assert acted.json()[1] == "operator"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (SAME, 200),
        ({"origin": HERE}, 200),
        ({"origin": HERE.replace("http:", "https:")}, 200),
        ({}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": HERE}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "http://[::1"}, 403),
    ],
    ids=str,
)
def test_an_action_of_another_site_is_refused(headers: dict[str, str], status: int) -> None:
    client = asking(Access(PEOPLE))
    answer = client.post("/", headers=headers | basic("ann", "ann-pässword"))
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8090", 200),
        ("localhost:8090", 200),
        ("[::1]:8090", 200),
        ("evil.example:8090", 403),
        ("127.0.0.1.evil.example", 403),
        ("10.0.0.1", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_without_passwords_a_foreign_host_name_is_refused(host: str, status: int) -> None:
    access = Access(DashboardTable())
    client = asking(access)
    client.cookies.set("eventonce-8090", access._token)
    assert client.get("/", headers={"host": host}).status_code == status


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "fe80::1%eth0"])
def test_without_passwords_an_address_that_other_machines_reach_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        check_host(DashboardTable(), host)
    check_host(PEOPLE, host)


def test_loopback_needs_no_passwords() -> None:
    check_host(DashboardTable(), "127.0.0.1")
    check_host(DashboardTable(), "::1")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (DashboardTable(viewers={"vic": "  "}), "empty text"),
        (DashboardTable(viewers={"vic": "short"}), "'vic' needs 8 characters"),
        (DashboardTable(operators={"a:b": "long-enough"}), "a user name of Basic has no colon"),
        (DashboardTable(viewers={"a": "x" * 9}, operators={"a": "y" * 9}), "choose one"),
    ],
)
def test_weak_or_ambiguous_passwords_are_refused(settings: DashboardTable, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Access(settings)


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("rejected by the handler: no customer for Anna Smith", "no customer for …"),
        ("given up after 5 attempts: KeyError: '+49 170 5550'", "attempts: KeyError: …"),
        ("call of anna@example.com", "call of …"),
        ("no contact for Jean-Luc O'Neill in Berlin", "no contact for … in …"),
        ("https://crm.example.com/a?b answered 503 Service Unavailable", "answered 503 …"),
        ("no contact for Öz Ünal-Şahin in Łódź", "no contact for … in …"),
        ("no contact for Анна", "no contact for …"),
        (f"{'no ' * 98}'anna smith'", "no no …"),
        ("cannot ask https://eve:secret@crm.example/a", "cannot ask https://…@crm.example/…"),
        ("no contact: name=Anna Smith", "no contact: name=…"),
        ("nothing at /contacts/Anna/Smith", "nothing at /contacts/…"),
        ("no account of <b>Anna</b> (Eve), user:Bob,Al|Cy #Dee", "of <b>…</b> (…), user:…|… #…"),
        ("“anna smith”, „eve“ and «bob» are unknown", "… and … are unknown"),
    ],
)
def test_a_viewer_reads_no_names_and_numbers_in_reasons(reason: str, shown: str) -> None:
    assert veiled(reason).endswith(shown)


@pytest.mark.parametrize(
    ("site", "dest", "status"),
    [
        ("cross-site", "document", 200),
        ("cross-site", "image", 403),
        ("cross-site", "iframe", 403),
        ("same-site", "empty", 403),
        ("same-origin", "empty", 200),
        ("none", "document", 200),
    ],
)
def test_a_request_as_a_part_of_a_page_of_another_site_is_refused(
    site: str, dest: str, status: int
) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-dest": dest, **basic("ann", "ann-pässword")}
    assert asking(Access(PEOPLE)).get("/", headers=headers).status_code == status


def test_a_refused_password_is_logged_without_the_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asking(Access(PEOPLE)).get("/", headers=basic("ann", "wrong-password"))
    assert "refused a wrong name or password from 127.0.0.1" in caplog.text
    assert "wrong-password" not in caplog.text


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.dashboard.access.WRONG_PASSWORD_WAIT", 0.0)
