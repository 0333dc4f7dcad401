"""The application over a real cluster, as callers of each kind meet it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from jobmaster.rules.access import Role
from jobmaster.settings.model import Web, WebToken
from jobmaster.web.app import create_app
from tests.integration.client.conftest import agent, client, client_settings, master, open_cluster, opened
from tests.integration.client.fixture import ClientFixture

__all__ = ["agent", "client", "client_settings", "master", "open_cluster", "opened"]

TOKENS = {role: f"token-of-the-{role.value}-{'x' * 20}" for role in Role}
WEB = Web(
    tokens={role.value: WebToken(token=token, role=role) for role, token in TOKENS.items()},
    hosts=["jobs.example.org"],
)
BASE = "http://127.0.0.1:8020"

Caller = Callable[..., httpx.AsyncClient]


@pytest.fixture
def app(client: ClientFixture) -> Starlette:
    """With a token for each role."""
    return create_app(client.cluster, WEB)


@pytest.fixture
async def caller(app: Starlette) -> AsyncIterator[Caller]:
    """Makes callers: ``caller()`` has no token, ``caller(Role.VIEWER)`` the one of a viewer."""
    async with AsyncExitStack() as stack:
        made: list[httpx.AsyncClient] = []

        def make(role: Role | None = None, application: Starlette = app, **given: Any) -> httpx.AsyncClient:
            headers = {} if role is None else {"Authorization": f"Bearer {TOKENS[role]}"}
            address = (given.pop("address", "127.0.0.1"), 50_000)
            one = httpx.AsyncClient(
                transport=httpx.ASGITransport(application, raise_app_exceptions=False, client=address),
                base_url=given.pop("base_url", BASE),
                headers={**headers, **given.pop("headers", {})},
                **given,
            )
            made.append(one)
            return one

        yield make
        for one in made:
            await stack.enter_async_context(one)


@pytest.fixture
def viewer(caller: Caller) -> httpx.AsyncClient:
    return caller(Role.VIEWER)


@pytest.fixture
def operator(caller: Caller) -> httpx.AsyncClient:
    return caller(Role.OPERATOR)


@pytest.fixture
def admin(caller: Caller) -> httpx.AsyncClient:
    return caller(Role.ADMIN)
