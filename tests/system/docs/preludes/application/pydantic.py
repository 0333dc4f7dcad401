"""What the page about pydantic takes for granted: nothing. Its snippet is a whole program, which is run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from jobmaster import Cluster

the_page: Any = import_module("the_page")
handlers = the_page.handlers


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    pass


async def after(names: dict[str, Any]) -> None:
    await the_page.main()
