"""Blocks of code on the pages, as far as no server is needed: who runs them, whether their commands exist, whether their
settings fit the schema. ``tests/system/docs`` runs them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import yaml

from jobmaster.settings.problems import Origin, OriginKind
from jobmaster.settings.yaml_tree import parse_yaml
from tests.repository.made_texts import ROOT
from tests.repository.tree import there
from tests.support.pages.page_runner import Block, all_blocks, blocks
from tests.support.pages.typed_commands import commands, fault, typed_lines
from tests.system.docs import programs
from tests.system.docs import test_pages as runs_of_pages
from tests.unit.settings.test_json_schema import SCHEMA, as_data, violations

MARKDOWN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN_LANGUAGES = {"python", "sql"}
TYPED = [*MARKDOWN, *sorted([*(ROOT / "examples").rglob("*.md"), *(ROOT / "config").rglob("*.md")])]
"""Also the read-me files of examples and of deployment files, whose commands are typed."""
NOT_RUN = {
    "docs/migrating/celery.md": 7,
    "docs/migrating/rq.md": 6,
    "docs/migrating/dramatiq.md": 6,
    "docs/migrating/arq-saq.md": 7,
    "docs/migrating/procrastinate.md": 6,
    "docs/recipes.md": 2,
    "docs/pipeline-jobs.md": 1,
}
"""Page -> number of its blocks that no test runs, each with its reason on the page."""
OTHER_YAML = {
    ("docs/alerts.md", "scrape_configs"),
    ("docs/operations.md", "apiVersion"),
    ("docs/pipeline-figures.md", "objectives"),
    ("docs/releasing.md", "on"),
}
"""Page and first key of YAML that is no configuration of a cluster (of Prometheus, Kubernetes, the pipeline, GitHub)."""
PROGRAMS = {
    "cat", "cd", "chmod", "cp", "curl", "cut", "docker", "export", "git", "install", "kill", "kubectl", "pip", "psql",
    "python", "source", "systemctl", "useradd", "uvicorn", "xargs",
}  # fmt: skip
"""What a reader may have to type that is not ours."""
_SPAN = re.compile(r"`(jobmaster [^`\n]+)`")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages(paths: Sequence[Path] = MARKDOWN) -> list[object]:
    return [pytest.param(path, id=name_of(path)) for path in paths]


def blocks_of(page: Path) -> list[Block]:
    return all_blocks(page.read_text(encoding="utf-8"))


# ---------------------------------------------------------------- each block is run, or says why not


def test_snippets_of_every_page_are_run() -> None:
    run = [
        *runs_of_pages.PAGES,
        *programs.PAGES,
        *(ROOT / page for page in (*runs_of_pages.EXPLAINING, *runs_of_pages.ELSEWHERE)),
    ]
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


def test_what_is_not_run_is_counted() -> None:
    """A block that is left out by a new reason shows here."""
    found = Counter(name_of(page) for page in MARKDOWN for block in blocks_of(page) if block.reason is not None)
    assert found == NOT_RUN


def test_every_mark_has_a_block() -> None:
    marks = {
        name_of(page): len(re.findall("^ *<!-- not run:", page.read_text(encoding="utf-8"), re.MULTILINE))
        - sum(block.reason is not None for block in blocks_of(page))
        for page in MARKDOWN
    }
    assert {page for page, more in marks.items() if more} == set()


def test_the_mark_leaves_a_block_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: it is theirs -->\n```python\n1 / 0\n```\n\n```python\n1\n```\n")
    assert blocks(page) == [("python", "1\n")]
    assert [(block.line, block.reason) for block in all_blocks(page.read_text())] == [(2, "it is theirs"), (6, None)]


@pytest.mark.parametrize(("page", "test"), runs_of_pages.ELSEWHERE.items())
def test_what_is_run_elsewhere_is_read_there(page: str, test: str) -> None:
    assert f'"{Path(page).name}"' in (ROOT / test).read_text(encoding="utf-8")


def test_every_prelude_belongs_to_a_page() -> None:
    preludes = runs_of_pages.PRELUDES
    there_ = {path.relative_to(preludes).with_suffix("").as_posix() for path in preludes.rglob("*.py")}
    assert there_ == set(runs_of_pages.EXPLAINING.values())


@pytest.mark.parametrize("page", pages())
def test_python_compiles(page: Path) -> None:
    """Also what is not run."""
    for block in blocks_of(page):
        if block.language == "python":
            compile(block.text, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("page", pages(TYPED))
def test_commands_exist_with_their_options(page: Path) -> None:
    wrong = [
        f"line {block.line}: {line}: {why}"
        for block in blocks_of(page)
        for line in typed_lines(block.language, block.text)
        for why in line_faults(line)
    ]
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    wrong += [f"{span}: {why}" for span in _SPAN.findall(prose) for why in line_faults(span, whole=False)]
    assert wrong == []


def line_faults(line: str, *, whole: bool = True) -> list[str]:
    """What is wrong with the commands of a line."""
    try:
        found = list(commands(line))
    except ValueError as error:
        return [str(error)]
    faults = []
    for command in found:
        if command.program == "jobmaster":
            faults.append(fault(command.words, whole=whole and not command.rest_follows))
        elif command.program == "make":
            faults.append(make_fault(command.words))
        elif command.program in ("python", "python3") and command.words[:1] == ("-m",):
            faults.append(module_fault(command.words[1]))
        elif whole and command.program not in PROGRAMS:
            faults.append(f"the program {command.program} is none of `PROGRAMS`")
    return [one for one in faults if one]


def make_fault(words: Sequence[str]) -> str:
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for word in words if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")}
    return f"no target {', '.join(sorted(named - targets))}" if named - targets else ""


def module_fault(name: str) -> str:
    """A module of the tree has to be there; others are of Python or of another package."""
    room = name.partition(".")[0]
    if room not in ("benchmarks", "tests", "jobmaster", "jobmaster_agents", "examples"):
        return ""
    path = ROOT / ("agents" if room == "jobmaster_agents" else "") / name.replace(".", "/")
    return "" if there(ROOT, path.with_suffix(".py")) or there(ROOT, path / "__main__.py") else f"no module {name}"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("jobmaster agent run --name x --processes 2", ""),
        ("jobmaster dev --handlers tasks", ""),
        ("jobmaster dev --handlers tasks fly", "no command fly"),
        ("jobmaster agent fly", "no command fly"),
        ("jobmaster agent run --wings", "No such option"),
        ("jobmaster agent run --processes many", "'many' is not a valid integer"),
        ("jobmaster job show", "'JOB' is missing"),
        ("jobmaster job show 019a 019b", "too many arguments: 019b"),
        ("jobmaster job list --state", "requires an argument"),
        ("jobmaster job list -o nonsense", "'nonsense' is not one of"),
        ("jobmaster job list -o name | xargs jobmaster job retry", ""),
        ("kill -9 $(jobmaster agent lst)", "no command lst"),
        ("LANG=C jobmaster status > out.txt   # a comment", ""),
        ("make fly", "no target fly"),
        ("make PYTHON=/path/to/python3.12 install", ""),
        ("python -m benchmarks.fly", "no module benchmarks.fly"),
        ("flytool --now", "none of `PROGRAMS`"),
    ],
)
def test_a_wrong_command_is_found(line: str, why: str) -> None:
    found = " ".join(line_faults(line))
    assert why in found
    assert bool(why) is bool(found)


# ---------------------------------------------------------------- settings and data


@pytest.mark.parametrize("page", pages())
def test_yaml_fits_the_schema_of_the_configuration(page: Path) -> None:
    wrong = []
    for block in blocks_of(page):
        if block.language != "yaml":
            continue
        if (name_of(page), first_key(block.text)) in OTHER_YAML:
            yaml.safe_load(block.text)
            continue
        wrong += [f"line {block.line}: {one}" for one in yaml_faults(block.text)]
    assert wrong == []


def first_key(text: str) -> str:
    found = re.search(r"^(\w+):", text, re.MULTILINE)
    return found[1] if found else ""


def yaml_faults(text: str) -> list[str]:
    tree, problems = parse_yaml(text, Origin(OriginKind.FILE, "page"))
    return [*(str(problem) for problem in problems), *violations(as_data(tree), SCHEMA)]


def test_yaml_that_does_not_fit_is_found() -> None:
    assert yaml_faults("leases:\n  lease: 15s\n") == []
    assert yaml_faults("leases:\n  leese: 15s\n") == ["$.leases.leese: unknown"]


@pytest.mark.parametrize("page", pages())
def test_toml_and_json_can_be_read(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            msgspec.json.decode(block.text)
