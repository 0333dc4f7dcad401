"""Every route and every method, as every kind of caller: what is not allowed is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from starlette.applications import Starlette

from jobmaster.rules.access import READING, Role, Scope
from jobmaster.settings.model import Web
from jobmaster.web.api.routes import OPERATIONS, openapi_document
from jobmaster.web.app import create_app
from jobmaster.web.guard import SAFE_METHODS, GuardedRoute
from tests.support.web_callers import Caller
from tests.unit.web.conftest import unused_cluster

OPEN = {"/live"}
"""Paths for callers without a token."""
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
COPY = Path(__file__).parents[3] / "docs" / "openapi.json"


def routes_of(app: Starlette) -> list[GuardedRoute]:
    return [route for route in app.routes if isinstance(route, GuardedRoute)]


def path_of(route: GuardedRoute) -> str:
    """A path that the route answers."""
    kinds = {"job": "0199a1f0-1111-7111-8111-111111111111", "kind": "lane"}
    kinds |= dict.fromkeys(("batch", "workflow", "operation", "agent", "bucket"), kinds["job"])
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: kinds.get(found[1], "some"), route.path)


async def test_no_route_answers_without_a_token(app: Starlette, caller: Caller) -> None:
    nobody = caller()
    for route in routes_of(app):
        for method in METHODS:
            status = (await nobody.request(method, path_of(route))).status_code
            allowed = {200} if route.path in OPEN and method in ("GET", "HEAD") else {401, 405}
            assert status in allowed, (method, route.path)
            if method in (route.methods or ()) and route.path not in OPEN:
                assert status == 401, (method, route.path)


@pytest.mark.parametrize("role", Role)
async def test_a_route_answers_callers_with_its_scope_alone(app: Starlette, caller: Caller, role: Role) -> None:
    one = caller(role)
    for route in routes_of(app):
        (method, *_) = sorted(route.methods or ())
        answer = await one.request(method, path_of(route))
        allowed = route.scope is None or route.scope in role.scopes
        assert (answer.status_code != 403) is allowed, (method, route.path, answer.text)


async def test_no_route_takes_a_change_from_another_site_or_without_authentication(
    app: Starlette, caller: Caller
) -> None:
    admin = caller(Role.ADMIN)
    bare = caller(application=create_app(unused_cluster(), Web(anonymous=[*READING])))
    for route in routes_of(app):
        for method in (route.methods or set()) - SAFE_METHODS:
            crossed = await admin.request(method, path_of(route), headers={"Sec-Fetch-Site": "cross-site"})
            assert (crossed.status_code, crossed.json()["error"]["code"]) == (403, "cross_site"), route.path
            anonymous = await bare.request(method, path_of(route))
            assert (anonymous.status_code, anonymous.json()["error"]["code"]) == (403, "read_only"), route.path


def test_what_changes_something_needs_more_than_a_scope_to_read() -> None:
    for operation in OPERATIONS:
        changes = operation.method not in SAFE_METHODS
        assert (operation.scope not in READING) is changes, operation.path
    assert {Role.VIEWER, Role.OPERATOR, Role.ADMIN} == set(Role)
    assert Role.VIEWER.scopes < Role.OPERATOR.scopes < Role.ADMIN.scopes == frozenset(Scope)


def test_the_document_is_current_and_has_every_operation() -> None:
    document = json.loads(openapi_document())
    assert json.loads(COPY.read_text(encoding="utf-8")) == document, "run: jobmaster web openapi > docs/openapi.json"
    listed = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert listed == {
        ("/api/v1" + operation.path.replace(":path}", "}"), operation.method.lower()) for operation in OPERATIONS
    }
    text = json.dumps(document)
    references = {each.rpartition("/")[2] for each in re.findall(r'"\$ref": "([^"]+)"', text)}
    assert references <= document["components"]["schemas"].keys() | {"Refused"}
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
