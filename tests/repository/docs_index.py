"""The index of the documentation: its sections and pages, and ``docs/llms.txt``, which is made from them.

``python -m tests.repository.docs_index`` writes ``docs/llms.txt`` in the form of llmstxt.org: a title, a summary, lists of
links.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LLMS = DOCS / "llms.txt"
_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([\w./-]+\.md)\): (.+)$")
_LINK = re.compile(r"(\]\()(\.\.?/[^)\s#]+)")


class Link(NamedTuple):
    """A page in the index."""

    title: str
    page: str
    """Path below ``docs``."""
    about: str


class Section(NamedTuple):
    """A heading of the index with its pages, in their order."""

    title: str
    links: tuple[Link, ...]


def sections(index: str) -> list[Section]:
    """Sections of the text of ``index.md`` that list pages.

    Raises:
        ValueError: an item of a list is not ``- [title](page.md): what it is about``.
    """
    found = []
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        links = []
        for line in body.splitlines():
            if line.startswith("- "):
                entry = _ENTRY.match(line)
                if entry is None:
                    raise ValueError(f"docs/index.md, {title}: write `- [title](page.md): about` in place of {line!r}")
                links.append(Link(*entry.groups()))
        if links:
            found.append(Section(title.strip(), tuple(links)))
    return found


def with_addresses(text: str, page: str, repository: str) -> str:
    """A page whose links to files outside of ``docs`` are addresses of the repository.

    Args:
        page: path of the page below ``docs``.
        repository: address of the repository.
    """

    def address(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[2]))
        return link[0] if path.startswith("docs/") else f"{link[1]}{repository}/blob/main/{path}"

    return _LINK.sub(address, text)


def llms_text(index: str) -> str:
    """``llms.txt``: the index with the address of each page in the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    blocks = ["# JobMaster for Python", f"> {project['description']}"]
    blocks.append(
        f"The package is `jobmaster`, the distribution `{project['name']}`; this is version {project['version']}."
    )
    for section in sections(index):
        lines = [
            f"- [{link.title}]({project['urls']['Source']}/raw/main/docs/{link.page}): {link.about}"
            for link in section.links
        ]
        blocks.append("\n".join([f"## {section.title}", "", *lines]))
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    LLMS.write_text(llms_text((DOCS / "index.md").read_text(encoding="utf-8")), encoding="utf-8")
