"""Sphinx: the documentation as a site. ``make docs`` builds it, with every warning an error.

The pages are plain Markdown that a repository browser shows as well. Two things are added while they are read: the
navigation, which is made from the lists of ``index.md``, and the addresses of files outside of this folder.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from pygments.lexers.sql import PostgresLexer  # noqa: E402

from tests.repository.docs_index import sections, with_addresses  # noqa: E402

_PROJECT: dict[str, Any] = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "JobMaster"
author = _PROJECT["authors"][0]["name"]
version = release = _PROJECT["version"]
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"JobMaster {version}"
html_extra_path = ["llms.txt"]
html_theme_options = {
    "source_repository": _PROJECT["urls"]["Source"],
    "source_branch": "main",
    "source_directory": "docs/",
}


def _read(app: Any, page: str, source: list[str]) -> None:
    """Change the text of a page before it is parsed."""
    text = with_addresses(source[0], f"{page}.md", _PROJECT["urls"]["Source"])
    if page == "index":
        for section in sections(text):
            pages = "\n".join(link.page for link in section.links)
            text += f"\n```{{toctree}}\n:hidden:\n:caption: {section.title}\n\n{pages}\n```\n"
    source[0] = text


def setup(app: Any) -> None:
    """Register with Sphinx."""
    app.connect("source-read", _read)
    app.add_lexer("sql", PostgresLexer)  # the general lexer of SQL does not know bodies of functions in $$
