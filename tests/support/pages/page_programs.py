"""Programs of a page: its Python blocks, which run on a real cluster with an agent in the process of the test.

A program is a page, or a section of one. Its statements run in their order. The cluster is opened at the first statement that
waits for something, with the handlers that were declared until then and the settings of the YAML blocks of the section;
``cluster`` is its name in the program. Handlers that are declared later get an agent of their own.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from jobmaster.handlers import Handlers
from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.rendering import settings_tree
from jobmaster.testing import RealCluster
from jobmaster.testing.embedded.servers import TestServers
from tests.support.pages.page_runner import all_blocks

Opened = Callable[[RealCluster, dict[str, Any]], Awaitable[None]]
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def with_long_lease(settings: ClusterSettings) -> ClusterSettings:
    """The agent of a page shares the process of the test. Its lease outlasts every delay of a loaded machine, so that no job
    of the page runs twice."""
    replace = msgspec.structs.replace
    return replace(settings, leases=replace(settings.leases, lease_seconds=300.0))


@contextmanager
def configured(settings: ClusterSettings, folder: Path) -> Iterator[None]:
    """``jobmaster.connect()`` finds the cluster of the settings, also in another thread."""
    tree: Any = settings_tree(settings)
    tree["master"]["dsn"] = settings.master.dsn  # the tree hides passwords
    for name, store in settings.stores.items():
        tree["stores"][name]["url"] = store.url
    file = folder / "found.yaml"
    file.write_text(json.dumps(tree))
    with patch.dict(os.environ, {"JOBMASTER_CONFIG": str(file)}):
        yield


class Program(NamedTuple):
    """What runs as one program."""

    page: Path
    title: str
    """Heading of the section; of a whole page: its first heading."""
    snippets: tuple[str, ...]
    yaml: tuple[str, ...]

    @property
    def id(self) -> str:
        """For the name of a test."""
        return f"{self.page.stem}: {self.title}"


def whole(page: Path) -> Program:
    """A page as one program."""
    text = page.read_text(encoding="utf-8")
    return _program(page, re.findall(r"^# (.+)$", text, re.MULTILINE)[0], text)


def sections(page: Path) -> list[Program]:
    """The sections of a page that have snippets, each a program."""
    parts = re.split(r"^## (.+)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = [_program(page, title, text) for title, text in zip(parts[::2], parts[1::2], strict=True)]
    return [program for program in found if program.snippets]


def _program(page: Path, title: str, text: str) -> Program:
    run = [block for block in all_blocks(text) if block.reason is None]
    return Program(
        page,
        title.strip(),
        tuple(block.text for block in run if block.language == "python"),
        tuple(block.text for block in run if block.language == "yaml"),
    )


def _statements(snippet: str, name: str) -> Iterator[tuple[bool, types.CodeType]]:
    """Each statement of a snippet, and whether it waits."""
    tree = compile(snippet, name, "exec", flags=_FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)
    for statement in tree.body:
        code = compile(ast.Module([statement], []), name, "exec", flags=_FLAGS, dont_inherit=True)
        yield bool(code.co_flags & inspect.CO_COROUTINE), code


class ProgramRunner:
    """Runs programs on the servers of the tests.

    Args:
        folder: an empty folder for the settings of programs.
    """

    def __init__(self, servers: TestServers, folder: Path) -> None:
        self._servers = servers
        self._folder = folder

    @asynccontextmanager
    async def run(
        self, program: Program, names: dict[str, Any], opened: Opened | None = None
    ) -> AsyncIterator[tuple[RealCluster, dict[str, Any]]]:
        """Run a program; its cluster lives until the block is left.

        Args:
            names: what the program takes for granted.
            opened: called when the cluster is open, to add names that need it.

        Yields: the cluster, and the names of the program after its end.
        """
        settings = with_long_lease(await self._servers.fresh_cluster(self._settings(program)))
        module = types.ModuleType("the_page")
        module.__dict__.update(names)
        async with AsyncExitStack() as stack:
            sys.modules["the_page"] = module  # where dataclasses and type hints look names up
            stack.callback(sys.modules.pop, "the_page")
            cluster: RealCluster | None = None
            served: set[str] = set()
            for snippet in program.snippets:
                for waits, code in _statements(snippet, program.page.name):
                    handlers = module.__dict__.get("handlers") or Handlers()
                    if waits and (cluster is None or set(handlers.names()) - served):
                        first = cluster is None
                        cluster, served = await self._open(stack, settings, handlers), set(handlers.names())
                        module.__dict__["cluster"] = cluster
                        if first and opened is not None:
                            await opened(cluster, module.__dict__)
                    done = eval(code, module.__dict__)  # noqa: S307 (a page of this repository)
                    if inspect.iscoroutine(done):
                        await done
            if cluster is None:
                cluster = await self._open(stack, settings, module.__dict__.get("handlers") or Handlers())
            yield cluster, module.__dict__

    async def _open(self, stack: AsyncExitStack, settings: ClusterSettings, handlers: Handlers) -> RealCluster:
        joined = Handlers()
        joined.merge(handlers)  # as it is now: the program may declare more
        cluster = await RealCluster.open(settings, joined, self._servers.directory)
        stack.push_async_callback(cluster.shut_down)
        return cluster

    def _settings(self, program: Program) -> ClusterSettings:
        file = self._folder / "jobmaster.yaml"
        file.write_text("\n".join(program.yaml))
        return load_settings(file).settings
