"""The pages say what the code does: links resolve, names exist, lists and diagrams are current."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.overrides import UnknownPath, resolve
from jobmaster.telemetry import METRICS, Kind, Telemetry
from jobmaster_agents.event_log import Event
from jobmaster_agents.run_agent import LEFT_BEHIND_EXIT_CODE, ORPHANED_EXIT_CODE, RECYCLED_EXIT_CODE
from jobmaster_agents.state.ownership import FENCED_EXIT_CODE
from jobmaster_agents.supervisor.restart_policy import REFUSED_EXIT_CODES
from tests.repository.documentation.state_charts import moves_of
from tests.repository.made_texts import CHARTS, PAGES, PARTS, ROOT, charts, made, parts_of
from tests.repository.tree import there

MARKDOWN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OPERATIONS = ROOT / "docs" / "operations.md"
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
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


# ---------------------------------------------------------------- parts made from the code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_made_from_the_code_is_current(page: Path) -> None:
    assert text_of(page) == made(text_of(page)), "run: python -m tests.repository.made_texts"


@pytest.mark.parametrize("chart", charts(), ids=lambda path: path.stem)
def test_charts_of_the_transition_tables_are_current_and_on_a_page(chart: Path) -> None:
    assert text_of(chart) == charts()[chart], "run: python -m tests.repository.made_texts"
    assert any(f"](images/{chart.name})" in text_of(page) for page in PAGES)


def test_a_chart_has_every_transition() -> None:
    for chart in CHARTS.values():
        shown = {(source, move.event): move.target for move in moves_of(chart) for source in move.sources}
        assert shown == dict(chart.transitions)


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
