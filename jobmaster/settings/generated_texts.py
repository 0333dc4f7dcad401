"""Texts that are made from the settings and kept in the tree: the commented example, the schema, the reference.

``python -m jobmaster.settings.generated_texts`` writes them anew; a test compares what is kept with what would be written.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from jobmaster.settings.json_schema import json_schema_text
from jobmaster.settings.overrides import OTHER_VARIABLES
from jobmaster.settings.rendering import leaf_rows, leaf_text, tree_of, yaml_lines
from jobmaster.settings.schema import (
    Block,
    Key,
    Leaf,
    LeafKind,
    Series,
    Shape,
    Table,
    describe_bounds,
    expected_of,
    settings_shape,
)

SCHEMA_NAME = "jobmaster.schema.json"
TABLES_START = "<!-- made from jobmaster/settings/model.py: start -->"
TABLES_END = "<!-- made from jobmaster/settings/model.py: end -->"

_WIDTH = 110
_HEAD = """\
# yaml-language-server: $schema={schema}
#
# A JobMaster cluster: every key, with its default. Keep what you change and delete the rest.
# Durations: 250ms 30s 5m 1h30m 2d, or plain seconds. Sizes: 512 128KiB 1MB. Inside a value: ${{NAME}},
# ${{NAME:-default}} and ${{file:/path}}. JOBMASTER_LEASES__LEASE=15s in the environment wins over this file, and
# --set leases.lease=15s over both. Check with: jobmaster config validate
"""


def example_yaml(schema: str = SCHEMA_NAME) -> str:
    """A complete file of defaults in which every key is explained; it loads as ``ClusterSettings()``."""
    root = settings_shape()
    return _HEAD.format(schema=schema) + "\n".join(_explain_block(root, root.struct(), "")) + "\n"


def _explain_block(block: Block, value: object, indent: str) -> Iterator[str]:
    for name, key in block.keys.items():
        inner = getattr(value, key.attribute)
        if not indent:
            yield ""
        yield from _comment(key, indent)
        match key.shape:
            case Block() if _fits_one_line(key.shape):
                yield f"{indent}{name}: {_flow(key.shape, inner)}"
            case Block():
                yield f"{indent}{name}:"
                yield from _explain_block(key.shape, inner, indent + "  ")
            case Table() if inner and isinstance(key.shape.value, Block):
                yield f"{indent}{name}:"
                for entry, entry_value in inner.items():
                    yield f"{indent}  {entry}:"
                    yield from _explain_block(key.shape.value, entry_value, indent + "    ")
            case _:
                yield from (indent + line for line in yaml_lines({name: tree_of(key.shape, inner)}))


def _fits_one_line(block: Block) -> bool:
    return not any(key.description for key in block.keys.values())


def _flow(block: Block, value: object) -> str:
    rows = leaf_rows(tree_of(block, value))
    return "{" + ", ".join(f"{path}: {leaf_text(leaf)}" for path, leaf in rows) + "}"


def _comment(key: Key, indent: str) -> Iterator[str]:
    text = key.description.replace("``", "")
    takes = _takes(key)
    if takes:
        text = f"{text.rstrip('.')} ({takes})."
    if text:
        margin = f"{indent}# "
        yield from textwrap.wrap(text, _WIDTH, initial_indent=margin, subsequent_indent=margin)


def _takes(key: Key) -> str:
    """Bounds, words or form of a leaf, where its description is not enough."""
    match key.shape:
        case Leaf(kind=LeafKind.CHOICE) as leaf if all(word in key.description for word in leaf.choices):
            return ""
        case Leaf(kind=LeafKind.CHOICE) as leaf:
            return expected_of(leaf)
        case Leaf(kind=LeafKind.TEXT) as leaf if leaf.optional:
            return expected_of(leaf)
        case Leaf() as leaf if leaf.le is not None:
            return describe_bounds(leaf)
    return ""


def reference_tables() -> str:
    """Markdown: one table per section, one row per key."""
    parts = ["### Top level\n", *_table(settings_shape(), "")]
    for name, key in settings_shape().keys.items():
        parts += _sections(key.shape, name)
    parts += ["\n### Other variables\n", "| variable | meaning |", "|---|---|"]
    parts += [f"| `{name}` | {meaning} |" for name, meaning in OTHER_VARIABLES.items()]
    return "\n".join(parts) + "\n"


def _sections(shape: Shape, path: str) -> Iterator[str]:
    match shape:
        case Block():
            yield f"\n### `{path}`\n"
            yield f"{_markdown(shape.description)}\n"
            yield from _table(shape, f"{path}.")
            for name, key in shape.keys.items():
                yield from _sections(key.shape, f"{path}.{name}")
        case Table():
            yield from _sections(shape.value, f"{path}.<name>")


def _table(block: Block, prefix: str) -> Iterator[str]:
    yield "| key | default | takes | meaning |"
    yield "|---|---|---|---|"
    for name, key in block.keys.items():
        yield f"| `{prefix}{name}` | {_default(key)} | {_cell(_kind(key.shape))} | {_markdown(key.description)} |"


def _default(key: Key) -> str:
    match key.shape:
        case Leaf():
            return f"`{leaf_text(tree_of(key.shape, key.make_default()))}`"
        case Series():
            tree = tree_of(key.shape, key.make_default())
            return f"`[{', '.join(map(str, tree))}]`" if isinstance(tree, list) else "`[]`"
        case Table():
            tree = tree_of(key.shape, key.make_default())
            return f"`{', '.join(tree)}`" if isinstance(tree, dict) and tree else "`{}`"
        case Block():
            return ""


def _kind(shape: Shape) -> str:
    match shape:
        case Leaf():
            measured = {LeafKind.DURATION: "duration", LeafKind.SIZE: "size"}.get(shape.kind)
            words = f"{measured} {describe_bounds(shape)}".strip() if measured else expected_of(shape)
            return words + (", or null" if shape.optional else "")
        case Series():
            return f"a list; each: {expected_of(shape.item)}"
        case Table():
            return f"a mapping; each name: {expected_of(shape.key)}"
        case Block():
            return "a section, below"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _markdown(text: str) -> str:
    return _cell(" ".join(text.replace("``", "`").split()))


def made_texts(root: Path) -> dict[Path, str]:
    """Path under ``root`` -> what should stand there."""
    reference = root / "docs" / "configuration.md"
    page = reference.read_text(encoding="utf-8")
    before, _, rest = page.partition(TABLES_START)
    _, _, after = rest.partition(TABLES_END)
    return {
        root / "config" / SCHEMA_NAME: json_schema_text(),
        root / "config" / "cluster.yaml": example_yaml(),
        reference: f"{before}{TABLES_START}\n\n{reference_tables()}\n{TABLES_END}{after}",
    }


def main() -> None:
    """Write every text under the current directory, which must be the root of the source tree."""
    for path, text in made_texts(Path()).items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
