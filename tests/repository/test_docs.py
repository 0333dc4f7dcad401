"""The pages say what the code does: links resolve, code compiles, commands exist, lists and diagrams are current."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from jobmaster.cli.main import root as command_line
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.overrides import UnknownPath, resolve
from jobmaster.telemetry import METRICS, Kind, Telemetry
from jobmaster_agents.event_log import Event
from jobmaster_agents.run_agent import LEFT_BEHIND_EXIT_CODE, ORPHANED_EXIT_CODE, RECYCLED_EXIT_CODE
from jobmaster_agents.state.ownership import FENCED_EXIT_CODE
from jobmaster_agents.supervisor.restart_policy import REFUSED_EXIT_CODES
from tests.repository.made_texts import PAGES, PARTS, ROOT, made, parts_of
from tests.repository.tree import there
from tests.support.page_runner import blocks
from tests.system.docs import test_pages as runs_of_pages

MARKDOWN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OPERATIONS = ROOT / "docs" / "operations.md"
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"(?:^|[\s$(])(?:\.venv/bin/)?jobmaster((?: +[^\s`#|&;]+)+)")
_TREE_PATH = re.compile(r"^(jobmaster|agents|master_schema|config|docs|tests|benchmarks|requirements)/[\w./-]*$")


def pages() -> list[object]:
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in MARKDOWN]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose_of(path: Path) -> str:
    return _BLOCK.sub("", text_of(path))


def served_names() -> set[str]:
    """Names of the metrics as a scrape shows them."""
    telemetry = Telemetry()
    for key, metric in METRICS.items():
        if metric.kind is Kind.HISTOGRAM and metric.label is not None:
            getattr(telemetry, key).of(*metric.label.split(", "))
        elif metric.label is not None:
            labels = tuple(metric.label.split(", "))
            getattr(telemetry, key)[labels if len(labels) > 1 else metric.label] = 1
    samples = re.findall(
        r"^(jobmaster_\w+?)(?:_bucket|_sum|_count)?[{ ]", telemetry.exposition().decode(), re.MULTILINE
    )
    return set(samples)


@pytest.mark.parametrize("page", pages())
def test_names_of_metrics_are_those_that_are_served(page: Path) -> None:
    """An alert that is copied from a page must match something."""
    served, bare = served_names(), {metric.name for metric in METRICS.values()}
    named = set(re.findall(r"\bjobmaster_[a-z_]+\b", text_of(page)))
    of_metrics = {name for name in named if name.removesuffix("_total") in bare}
    assert of_metrics - served == set()


# ---------------------------------------------------------------- links and names


@pytest.mark.parametrize("page", pages())
def test_links_resolve(page: Path) -> None:
    broken = [link for link in _LINK.findall(prose_of(page)) if not link_holds(page, link)]
    assert broken == []


def link_holds(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True
    target, _, anchor = link.partition("#")
    file = (page.parent / target).resolve() if target else page
    return there(ROOT, file) and (not anchor or anchor in anchors(file))


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages())
def test_paths_that_are_named_exist(page: Path) -> None:
    named = {word for word in _CODE.findall(prose_of(page)) if _TREE_PATH.match(word)}
    assert sorted(word for word in named if not there(ROOT, ROOT / word)) == []


def test_modules_that_are_named_by_the_end_of_their_path_exist() -> None:
    """The architecture page names modules by folder and file, without the package."""
    files = [path.as_posix() for room in ("jobmaster", "agents", "tests") for path in (ROOT / room).rglob("*.py")]
    text = text_of(ROOT / "docs" / "architecture.md")
    named = {word for word in _CODE.findall(text) if re.fullmatch(r"(\w+/)*\w+\.py", word)}
    assert named
    assert sorted(word for word in named if not any(file.endswith(f"/{word}") for file in files)) == []


# ---------------------------------------------------------------- code and commands


@pytest.mark.parametrize("page", pages())
def test_python_compiles(page: Path) -> None:
    for language, block in _BLOCK.findall(text_of(page)):
        if language == "python":
            compile(block, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


RUN_LANGUAGES = {"python", "sql"}


def test_snippets_of_every_page_are_run() -> None:
    """Programs and statements are executed; commands of other pages are compared with the command line below."""
    run = [*runs_of_pages.PAGES, *(ROOT / page for page in (*runs_of_pages.EXPLAINING, *runs_of_pages.ELSEWHERE))]
    assert unrun(MARKDOWN, run) == []


def test_a_page_that_nothing_runs_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("1. Do this:\n\n   ```python\n   print(1)\n   ```\n")
    assert unrun([page], []) == ["page.md: python"]
    assert unrun([page], [page]) == []


def unrun(pages_: Sequence[Path], run: Sequence[Path]) -> list[str]:
    """Pages with blocks of code that no test runs."""
    found = {path: {language for language, _ in blocks(path)} & RUN_LANGUAGES for path in pages_ if path not in run}
    return [f"{path.name}: {', '.join(sorted(languages))}" for path, languages in found.items() if languages]


@pytest.mark.parametrize(("page", "test"), runs_of_pages.ELSEWHERE.items())
def test_what_is_run_elsewhere_is_read_there(page: str, test: str) -> None:
    assert f'"{Path(page).name}"' in text_of(ROOT / test)


def test_every_prelude_belongs_to_a_page() -> None:
    there_ = {path.stem for path in runs_of_pages.PRELUDES.glob("*.py")}
    assert there_ == set(runs_of_pages.EXPLAINING.values())


@pytest.mark.parametrize("page", pages())
def test_commands_exist(page: Path) -> None:
    wrong = [f"jobmaster {' '.join(words)}: {why}" for words in commands_in(page) if (why := command_fault(words))]
    assert wrong == []


def commands_in(page: Path) -> list[list[str]]:
    """Command lines in blocks of console text and in code spans."""
    text = text_of(page)
    sources = [block for language, block in _BLOCK.findall(text) if language in ("console", "sh", "bash", "")]
    spans = [span for span in _CODE.findall(prose_of(page)) if span.startswith("jobmaster ")]
    return [match.split() for source in [*sources, *spans] for match in _COMMAND.findall(source)]


def command_fault(words: list[str]) -> str:
    """What is wrong with ``jobmaster <words>``; empty when nothing is."""
    command: click.Command = command_line
    context = click.Context(command)
    path, value = True, False
    for word in words:
        if value:  # of the option before it
            value = False
        elif word.startswith("-"):
            name = word.split("=")[0]
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            if name not in known | {"--help", "-h"}:
                return f"no option {name}"
            value = "=" not in word and any(
                name in parameter.opts and not getattr(parameter, "is_flag", False) for parameter in command.params
            )
        elif path and isinstance(command, click.Group):
            if not re.fullmatch(r"[a-z][a-z-]*", word):
                path = False
                continue
            found = command.get_command(context, word)
            if found is None:
                return f"no command {word}"
            command = found
    return ""


def test_a_wrong_command_is_found() -> None:
    assert command_fault(["agent", "run", "--name", "x"]) == ""
    assert command_fault(["dev", "--handlers", "tasks"]) == ""
    assert command_fault(["dev", "--handlers", "tasks", "fly"]) == "no command fly"
    assert command_fault(["agent", "fly"]) == "no command fly"
    assert command_fault(["agent", "run", "--wings"]) == "no option --wings"


# ---------------------------------------------------------------- parts made from the code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_made_from_the_code_is_current(page: Path) -> None:
    assert text_of(page) == made(text_of(page)), "run: python -m tests.repository.made_texts"


def test_every_part_is_on_a_page() -> None:
    assert sorted(name for page in PAGES for name in parts_of(text_of(page))) == sorted(PARTS)


def table_under(page: Path, title: str) -> list[list[str]]:
    """Cells of the first table under a heading, without its head."""
    section = re.split(rf"^#+ {title}$", text_of(page), flags=re.MULTILINE)[1]
    rows = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert rows is not None
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[0].splitlines()[2:]]


def test_every_log_event_is_explained_with_its_level() -> None:
    explained = {cells[0].strip("`"): set(cells[1].split(", ")) for cells in table_under(OPERATIONS, "Log events")}
    code = "\n".join(text_of(path) for path in (ROOT / "agents").rglob("*.py"))
    written = levels_in(code)
    assert explained == {event.value: written[event.name] or {"-"} for event in Event}


def levels_in(code: str) -> dict[str, set[str]]:
    """Name of an event -> levels at which the code writes it: by a direct call, or by one of two methods chosen in the line
    before."""
    level = r"\.(debug|info|warning|error)"
    levels = defaultdict[str, set[str]](set)
    for found, name in re.findall(rf"{level}\(\s*Event\.(\w+)", code):
        levels[name].add(found)
    for first, second, name in re.findall(rf" = [^\n]*{level} if [^\n]*{level}\n\s+\w+\(Event\.(\w+)", code):
        levels[name] |= {first, second}
    return levels


def test_exit_codes_of_agents_are_explained() -> None:
    cells = [row[0] for row in table_under(OPERATIONS, "Processes and signals") if row[0][:1].isdigit()]
    codes = {int(code) for cell in cells or exit_cells() for code in cell.split(", ")}
    ours = {
        0,
        RECYCLED_EXIT_CODE,
        FENCED_EXIT_CODE,
        ORPHANED_EXIT_CODE,
        LEFT_BEHIND_EXIT_CODE,
        *REFUSED_EXIT_CODES,
        69,
        70,
    }
    assert codes == ours


def exit_cells() -> list[str]:
    rows = re.findall(r"^\| ([\d, ]+) \| (?:both|agent|supervisor) \|", text_of(OPERATIONS), re.MULTILINE)
    return [row.strip() for row in rows]


def test_keys_of_the_configuration_that_are_named_exist() -> None:
    sections = set(ClusterSettings.__struct_fields__)
    wrong = []
    for page in (OPERATIONS, ROOT / "docs" / "architecture.md", ROOT / "README.md"):
        for word in _CODE.findall(prose_of(page)):
            key = word.split(":")[0]
            if re.fullmatch(r"[a-z_]+(\.[a-z_<>]+)+", key) and key.split(".")[0] in sections:
                try:
                    resolve(key.replace("<name>", "default").split("."))
                except UnknownPath:
                    wrong.append(f"{page.name}: {word}")
    assert wrong == []
