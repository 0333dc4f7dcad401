"""The pure part of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobmaster.demo.indexing import FileIndex, add_up, index_source, standard_library_files


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


def test_counts(tmp_path: Path) -> None:
    source = "import os\nfrom a import b, c\nclass A:\n    def f(self): import x\nasync def g(): ...\nh = lambda: 0"
    index = index_source(write(tmp_path / "a.py", source))
    assert (index.parses, index.lines, index.definitions, index.imports) == (True, 6, 3, 3)
    assert len(index.sha256) == 64


def test_what_does_not_parse_is_a_result(tmp_path: Path) -> None:
    for text in ("def", "x = \0", "(" * 500 + ")" * 500):
        index = index_source(write(tmp_path / "bad.py", text))
        assert not index.parses
        assert (index.definitions, index.imports) == (0, 0)
    assert index_source(write(tmp_path / "empty.py", "")) == FileIndex(
        sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", lines=0, parses=True
    )


def test_the_sum_does_not_depend_on_order_and_notices_every_difference() -> None:
    one = FileIndex(sha256="a", lines=1, parses=True, definitions=2, imports=3)
    two = FileIndex(sha256="b", lines=2, parses=False)
    totals = add_up([("x", one), ("y", two)])
    assert (totals.files, totals.lines, totals.definitions, totals.imports, totals.unparsed) == (2, 3, 2, 3, 1)
    assert add_up([("y", two), ("x", one)]) == totals
    assert add_up([("x", two), ("y", one)]) != totals
    assert add_up([("x", one)]) != totals
    assert add_up([("x", one), ("y", two), ("y", two)]) != totals


@pytest.mark.slow
def test_the_standard_library_is_found() -> None:
    files = standard_library_files()
    assert len(files) > 500
    assert files == sorted(files)
    assert not [path for path in files if "site-packages" in path]
    assert any(path.endswith("/asyncio/__init__.py") for path in files)
