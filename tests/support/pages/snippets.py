"""Executes the snippets of a page in turn, as one program.

``execute``, or ``python -m tests.support.pages.snippets PAGE PRELUDE``.

The prelude is a module with what the page takes for granted: ``handlers``, handlers that it names, and the coroutine function
``before(cluster, names)``, which makes what snippets use (receipts, a connection). ``cluster`` is connected to the cluster of
this environment. Where a page needs it, ``run_sql(text)`` executes a block of SQL, and ``after(names)`` calls what the
snippets only define.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import types
from importlib import import_module
from pathlib import Path

import jobmaster
from tests.support.pages.page_runner import blocks


async def execute(page: Path, prelude: str) -> None:
    """Execute all snippets."""
    module = types.ModuleType("page")
    sys.modules["page"] = module
    names = module.__dict__
    before = import_module(prelude)
    names.update({name: value for name, value in vars(before).items() if not name.startswith("__")})
    async with jobmaster.connect(handlers=before.handlers) as cluster:
        names["cluster"] = cluster
        await before.before(cluster, names)
        for language, snippet in blocks(page):
            if language == "sql":
                before.run_sql(snippet.replace("jobmaster_default", cluster.settings.schema_name()))
            if language != "python":
                continue
            code = compile(snippet, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            done = eval(code, names)  # noqa: S307 (a page of this repository)
            if inspect.iscoroutine(done):
                await done
        if hasattr(before, "after"):
            await before.after(names)


if __name__ == "__main__":
    asyncio.run(execute(Path(sys.argv[1]), sys.argv[2]))
