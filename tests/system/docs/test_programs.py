"""Programs and snippets of pages, beside an agent in this process, on servers that all of them share.

Each has a cluster of its own. Pages with commands and processes are in ``test_pages``.
"""

from __future__ import annotations

import asyncio
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from jobmaster.settings.loader import load_settings
from jobmaster.testing import RealCluster
from jobmaster.testing.embedded.servers import TestServers
from tests.support.pages.page_programs import Program, ProgramRunner, configured, with_long_lease
from tests.support.pages.page_runner import REPOSITORY, all_blocks, blocks
from tests.support.pages.snippets import execute
from tests.support.patience import patient
from tests.system.docs import programs, recipe_checks, test_pages
from tests.system.docs.programs import PROGRAMS

HANG_SECONDS = 120.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [pytest.param(one, id=one.id) for one in PROGRAMS],
)
async def test_the_program_does_what_the_page_says(
    program: Program, jobmaster_servers: TestServers, tmp_path: Path
) -> None:
    names = dict(programs.before(program))
    runner = ProgramRunner(jobmaster_servers, tmp_path)
    async with asyncio.timeout(patient(HANG_SECONDS)):
        async with runner.run(program, names, programs.opened(program)) as (cluster, after):
            await programs.check_of(program)(cluster, after)


def test_every_program_has_a_check_and_every_check_a_program() -> None:
    assert set(programs.CHECKS) == {programs.key_of(one) for one in PROGRAMS}
    assert set(programs.NAMES) <= set(programs.CHECKS)
    assert set(recipe_checks.BEFORE) <= set(recipe_checks.CHECKS)


def test_a_recipe_is_short() -> None:
    """Twenty-five lines of code in a block, without blank ones."""
    long = {
        f"line {block.line}": lines
        for block in all_blocks(programs.RECIPES.read_text(encoding="utf-8"))
        if block.language == "python" and (lines := len([one for one in block.text.splitlines() if one.strip()])) > 25
    }
    assert long == {}


def test_every_recipe_says_what_a_crash_does() -> None:
    parts = re.split(r"^## (.+)\n", programs.RECIPES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert [title for title, text in zip(parts[::2], parts[1::2], strict=True) if "**At a crash.**" not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in test_pages.EXPLAINING if page not in test_pages.NEEDS_SPARK])
async def test_the_snippets_of_the_page_run_beside_an_agent(
    page: str, tmp_path: Path, jobmaster_servers: TestServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the servers that all such pages share. The program of the page runs in a thread, because some snippets block."""
    prelude = test_pages.PRELUDES / f"{test_pages.EXPLAINING[page]}.py"
    name = f"page_{prelude.stem}"
    (tmp_path / f"{name}.py").write_text(prelude.read_text(encoding="utf-8"))
    snippets = [text for language, text in blocks(REPOSITORY / page) if language == "python"]
    (tmp_path / "the_page.py").write_text(
        "\n\n".join(snippets)
    )  # for preludes whose agents run the handlers of the page
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("the_page", "page"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    settings = with_long_lease(await jobmaster_servers.fresh_cluster(load_settings().settings))
    handlers = import_module(name).handlers
    with configured(settings, tmp_path):
        agent = await RealCluster.open(settings, handlers, jobmaster_servers.directory)
        try:
            await asyncio.to_thread(asyncio.run, execute(REPOSITORY / page, name))
        finally:
            await agent.shut_down()
