"""Several cases in one test, where what they share takes longer to make than a case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def about(case: object) -> Iterator[None]:
    """Name the case in a failure."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case {case!r}")
        raise
