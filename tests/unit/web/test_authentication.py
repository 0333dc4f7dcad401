"""Who is answered: callers, hosts, origins, methods."""

from __future__ import annotations

import base64

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from jobmaster.model.errors import CodeError
from jobmaster.rules.access import Role, Scope
from jobmaster.settings.model import Web
from jobmaster.web.app import create_app
from jobmaster.web.authentication import FAILURES_MAX, Principal
from jobmaster.web.guard import HEADERS, GuardedRoute
from tests.support.web_callers import BASE, TOKENS, WEB, Caller
from tests.unit.web.conftest import unused_cluster


@pytest.fixture(autouse=True)
def plain_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that asks the cluster nothing stands in the place of the pages."""

    async def start(_: Request) -> Response:
        return PlainTextResponse("start")

    monkeypatch.setattr("jobmaster.web.app.page_routes", lambda: [GuardedRoute("/", start, scope=Scope.VIEW)])


def basic(name: str, token: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{token}".encode()).decode()}


async def test_a_token_is_bearer_or_the_password_of_its_name_and_nothing_else(caller: Caller) -> None:
    token = TOKENS[Role.VIEWER]
    tried = {
        "": (401, None),
        f"Bearer {token}": (200, None),
        f"bearer {token}": (200, None),
        f"Bearer {token}x": (401, None),
        token: (401, None),
        "Bearer": (401, None),
        "Basic !!!": (401, None),
        basic("viewer", token)["Authorization"]: (200, None),
        basic("admin", token)["Authorization"]: (401, None),
        basic("", token)["Authorization"]: (401, None),
    }
    for at, (header, (status, _)) in enumerate(tried.items()):
        headers = {"Authorization": header} if header else {}
        answer = await caller(headers=headers, address=f"10.0.0.{at}").get("/")
        assert answer.status_code == status, header
        if status == 401:
            assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
            assert set(answer.json()["error"]) == {"code", "message", "hint"}


async def test_an_address_with_too_many_wrong_tokens_waits_and_others_do_not(caller: Caller) -> None:
    wrong = {"Authorization": "Bearer nonsense-nonsense-nonsense"}
    attacker = caller(address="10.9.9.9")
    statuses = [(await attacker.get("/", headers=wrong)).status_code for _ in range(FAILURES_MAX + 1)]
    assert statuses == [401] * FAILURES_MAX + [429]
    right = {"Authorization": f"Bearer {TOKENS[Role.ADMIN]}"}
    refused = await attacker.get("/", headers=right)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_failures")
    assert 0 < int(refused.headers["Retry-After"]) <= 60
    assert (await caller(address="10.9.9.8").get("/", headers=right)).status_code == 200


async def test_addresses_of_ipv4_wait_one_by_one_where_the_server_listens_on_ipv6(caller: Caller) -> None:
    wrong = {"Authorization": "Bearer nonsense-nonsense-nonsense"}
    for address, other in (("::ffff:10.9.9.9", "::ffff:10.9.9.8"), ("2001:db8::1", "2001:db8:0:1::1")):
        attacker = caller(address=address)
        statuses = [(await attacker.get("/", headers=wrong)).status_code for _ in range(FAILURES_MAX + 1)]
        assert statuses == [401] * FAILURES_MAX + [429]
        assert (await caller(Role.ADMIN, address=other).get("/")).status_code == 200
    assert (await caller(Role.ADMIN, address="2001:db8::2").get("/")).status_code == 429
    assert (await caller(Role.ADMIN, address="10.9.9.9").get("/")).status_code == 429


async def test_without_tokens_this_machine_reads_and_nothing_else_is_answered(caller: Caller) -> None:
    bare = create_app(unused_cluster(), Web())
    assert (await caller(application=bare).get("/")).status_code == 200
    assert (await caller(application=bare, address="::1").get("/")).status_code == 200
    for refused in (
        await caller(application=bare, address="10.0.0.1").get("/"),
        await caller(application=bare).get("/", headers={"X-Forwarded-For": "8.8.8.8"}),
        await caller(application=bare).get("/", headers={"Forwarded": "for=8.8.8.8"}),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "no_authentication")
    changed = await caller(application=bare).post("/")
    assert (changed.status_code, changed.json()["error"]["code"]) == (403, "read_only")


async def test_a_read_only_server_refuses_changes_of_an_admin(caller: Caller) -> None:
    frozen = create_app(unused_cluster(), WEB, read_only=True)
    for method in ("POST", "PUT", "PATCH", "DELETE", "FROB"):
        refused = await caller(Role.ADMIN, application=frozen).request(method, "/")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only"), method


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8020", 200),
        ("[::1]:8020", 200),
        ("localhost", 200),
        ("10.1.2.3", 200),
        ("jobs.example.org:443", 200),
        ("JOBS.example.org", 200),
        ("evil.example.org", 421),
        ("jobs.example.org.evil.example.org", 421),
        ("127.0.0.1.evil.example.org", 421),
        ("", 400),
        ("a b", 421),
        ("evil@jobs.example.org", 400),
        ("jobs.example.org:99999999", 400),
        ("jobs.example.org/", 400),
    ],
)
async def test_a_host_that_the_server_is_not_known_by_is_refused(caller: Caller, host: str, status: int) -> None:
    answer = await caller(Role.VIEWER).get("/", headers={"Host": host})
    assert answer.status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "FROB"])
async def test_a_change_from_another_site_is_refused(caller: Caller, method: str) -> None:
    admin = caller(Role.ADMIN)
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": BASE},
        {"Origin": "https://evil.example.org"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:8021"},
    ):
        refused = await admin.request(method, "/", headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "cross_site"), headers
    for own in ({}, {"Origin": BASE}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        assert (await admin.request(method, "/", headers=own)).status_code == 405


async def test_every_answer_has_the_headers_that_browsers_need(caller: Caller) -> None:
    async def defect(_: Request) -> Response:
        raise ValueError("secret")

    broken = create_app(unused_cluster(), Web())
    broken.router.routes.append(GuardedRoute("/defect", defect, scope=None))
    answers = [
        await caller().get("/live"),
        await caller().get("/"),
        await caller(Role.VIEWER).get("/"),
        await caller(Role.VIEWER).get("/nothing"),
        await caller(headers={"Host": "evil.example.org"}).get("/"),
        await caller(application=broken).get("/defect"),
    ]
    assert [answer.status_code for answer in answers] == [200, 401, 200, 404, 421, 500]
    for answer in answers:
        assert HEADERS.items() <= {name.title(): value for name, value in answer.headers.items()}.items()
        assert "server" not in answer.headers
    assert answers[-1].json()["error"]["code"] == "internal"
    assert "secret" not in answers[-1].text


async def test_an_application_knows_its_callers_itself(caller: Caller) -> None:
    async def who(connection: HTTPConnection) -> Principal | None:
        name = connection.headers.get("X-User")
        return None if name is None else Principal(name, frozenset({Scope.VIEW}))

    inner = create_app(unused_cluster(), Web(), authenticate=who)
    outer = Starlette(routes=[Mount("/jobs", inner), Route("/", lambda _: PlainTextResponse("mine"))])
    assert (await caller(application=outer).get("/jobs/", headers={"X-User": "ann"})).status_code == 200
    assert (await caller(application=outer).get("/jobs/")).status_code == 401
    assert (await caller(application=outer).get("/")).text == "mine"


def test_a_route_that_states_no_scope_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_to_all(_: Request) -> Response:
        return PlainTextResponse("")

    monkeypatch.setattr("jobmaster.web.app.page_routes", lambda: [Route("/leak", open_to_all)])
    with pytest.raises(CodeError, match="states no scope"):
        create_app(unused_cluster(), Web())
