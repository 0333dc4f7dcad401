"""A mutated file loads or is refused with places; no other error occurs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobmaster.settings.loader import load_settings
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.problems import InvalidSettings, Origin, OriginKind
from jobmaster.settings.rendering import settings_tree, yaml_lines
from jobmaster.settings.yaml_tree import (
    MappingNode,
    Node,
    PlainKind,
    ScalarNode,
    SequenceNode,
    Style,
    classify_plain,
    parse_yaml,
)

CONFIG = Path(__file__).parents[3] / "config"
VALID = [path.read_text(encoding="utf-8") for path in sorted(CONFIG.glob("*.yaml"))]
SPICE = [
    "*", "&a", "*a", "!", "!!int", "<<", "<<: *a", "---", "...", "%YAML 1.1", "\t", "\0", "\ud800", "\ufeff", "\x85",
    "[", "]", "{", "}", "[" * 40, ": ", "- ", "? ", "|", ">", "|2-\n", "'", '"', '"\\U00110000"', "#", "${", "${A}",
    "$${", "${file:/}", "${A:-${B}}", "yes", "1:30", "010", "2024-01-31", "~", ".nan", "1e400", "9" * 50, "-", "=",
    "\r", "\n", "  ", "\u2028", "prod", "10s",
]  # fmt: skip
PLACE = re.compile(r"scratch\.yaml(:[1-9][0-9]*:[1-9][0-9]*)?: .", re.DOTALL)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid file with a few cuts, copies and insertions."""
    text = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 30))
        piece = draw(st.one_of(st.sampled_from(SPICE), st.text(max_size=5), st.just(text[at : at + 40])))
        text = text[:at] + piece + text[at + length :]
    content = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(content)))
        content = content[:at] + draw(st.binary(max_size=4)) + content[at:]
    return content


def outcome(path: Path, env: dict[str, str], overrides: list[str]) -> ClusterSettings | InvalidSettings:
    """One of the two things that may come out."""
    try:
        return load_settings(path, env, overrides).settings
    except InvalidSettings as error:
        return error


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutations") / "scratch.yaml"


@settings(max_examples=100)
@example(content=b"")
@example(content=b"? ")
@example(content=b"{")
@given(content=mutated())
def test_a_mutated_file_loads_or_is_refused_with_places(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(content)
    result = outcome(scratch, {"A": "x"}, [])
    if isinstance(result, ClusterSettings):
        return
    assert result.details
    for detail in result.details:
        line = str(detail)
        assert PLACE.match(line.removeprefix(str(scratch.parent) + "/")), line
        assert line.isprintable(), repr(line)
        json.dumps(detail.as_dict()).encode()


@settings(max_examples=75)
@given(
    st.dictionaries(st.text(max_size=12), st.text(max_size=30), max_size=4), st.lists(st.text(max_size=30), max_size=4)
)
def test_any_environment_and_any_command_line_load_or_are_refused(
    scratch: Path, env: dict[str, str], overrides: list[str]
) -> None:
    scratch.write_text("cluster: a\n")
    variables = {f"JOBMASTER_{name.upper()}": value for name, value in env.items()}
    variables |= dict(zip(["JOBMASTER_JOBS__TIMEOUT", "JOBMASTER_MASTER"], env.values(), strict=False))
    result = outcome(scratch, variables, [*overrides, *(f"handlers={text}" for text in overrides)])
    if isinstance(result, InvalidSettings):
        assert result.problems
        assert all(line.isprintable() for line in result.problems), result.problems


PRINTABLE = st.text(st.characters(exclude_categories=["C"]), max_size=12)
TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**17), 10**17), PRINTABLE),
    lambda inner: st.one_of(st.dictionaries(PRINTABLE, inner, max_size=3), st.lists(inner, max_size=3)),
    max_leaves=8,
)


def _as_data(node: Node | None) -> object:
    match node:
        case MappingNode():
            return {key: _as_data(entry.value) for key, entry in node.entries.items()}
        case SequenceNode():
            return [_as_data(item) for item in node.items]
        case ScalarNode(style=Style.QUOTED):
            return node.text
        case ScalarNode():
            match classify_plain(node.text):
                case PlainKind.INTEGER:
                    return int(node.text)
                case PlainKind.BOOLEAN:
                    return node.text == "true"
                case PlainKind.NULL:
                    return None
            return node.text
    return None


@given(st.dictionaries(PRINTABLE, st.dictionaries(PRINTABLE, TREES, max_size=2), min_size=1, max_size=3))
def test_every_tree_is_written_as_yaml_that_reads_back(tree: dict[str, Any]) -> None:
    text = "\n".join(yaml_lines(tree))
    node, problems = parse_yaml(text, Origin(OriginKind.FILE, "x"))
    assert (problems, _as_data(node)) == ([], tree), text


@pytest.mark.parametrize("name", [path.name for path in sorted(CONFIG.glob("*.yaml"))])
def test_what_is_shown_as_yaml_loads_as_the_same_settings(scratch: Path, name: str) -> None:
    loaded = load_settings(CONFIG / name)
    scratch.write_text("\n".join(yaml_lines(settings_tree(loaded.settings))), encoding="utf-8")
    assert load_settings(scratch).settings == loaded.settings
