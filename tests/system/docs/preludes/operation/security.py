"""What the page about security takes for granted: a service that has passwords, and a handler with a secret."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers

handlers = Handlers()


class CompanyVault:
    """A service of the company."""

    async def database_token(self) -> str:
        return "token"


company_vault = CompanyVault()


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    """Nothing is submitted."""


async def after(names: dict[str, Any]) -> None:
    """The function of the page returns a password."""
    assert await names["token"]() == "token"
