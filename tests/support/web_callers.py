"""Callers of the web application inside the process of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from jobmaster.rules.access import Role
from jobmaster.settings.model import Web, WebToken

TOKENS = {role: f"token-of-the-{role.value}-{'x' * 20}" for role in Role}
WEB = Web(
    tokens={role.value: WebToken(token=token, role=role) for role, token in TOKENS.items()},
    hosts=["jobs.example.org"],
)
BASE = "http://127.0.0.1:8020"

Caller = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def callers() -> AsyncIterator[Callable[[Starlette], Caller]]:
    """Makes callers of an application: ``callers(app)(Role.VIEWER)``; without a role they have no token."""
    made: list[httpx.AsyncClient] = []

    def of(app: Starlette) -> Caller:
        def make(role: Role | None = None, application: Starlette = app, **given: Any) -> httpx.AsyncClient:
            headers = {} if role is None else {"Authorization": f"Bearer {TOKENS[role]}"}
            address = (given.pop("address", "127.0.0.1"), 50_000)
            one = httpx.AsyncClient(
                transport=httpx.ASGITransport(
                    application, raise_app_exceptions=given.pop("raises", False), client=address
                ),
                base_url=BASE,
                headers={**headers, **given.pop("headers", {})},
                **given,
            )
            made.append(one)
            return one

        return make

    yield of
    for one in made:
        await one.aclose()
