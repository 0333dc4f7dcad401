"""What `docs/handlers.md` takes for granted: nothing. An agent runs the handler of its last snippet."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from jobmaster import Cluster, call

the_page: Any = import_module("the_page")
handlers = the_page.handlers


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    pass


async def after(names: dict[str, Any]) -> None:
    receipt = await names["cluster"].submit(call(the_page.charge, order=7))
    await receipt.result(timeout=60)
