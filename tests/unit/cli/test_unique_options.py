"""The options of ``job submit`` for a unique key."""

from __future__ import annotations

from typing import Any

import pytest

from jobmaster import InputError, Unique
from jobmaster.cli.commands.jobs.submit import _submit_options


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"unique": "k"}, Unique(key="k")),
        ({"unique": "k", "debounce": 60.0}, Unique(key="k", debounce=60.0)),
        ({"unique": "k", "window": 5.0, "on_conflict": "reject"}, Unique(key="k", window=5.0, on_conflict="reject")),
        ({"unique_args": ("a", "b"), "throttle": 1.0}, Unique(args=("a", "b"), throttle=1.0)),
    ],
)
def test_they_are_one_option_of_the_client(given: dict[str, Any], expected: Unique) -> None:
    nothing = {
        "unique": None,
        "unique_args": (),
        "window": None,
        "throttle": None,
        "debounce": None,
        "on_conflict": None,
    }
    assert _submit_options({**nothing, **given}) == {"unique": expected}
    assert _submit_options(dict(nothing)) == {}


def test_a_term_without_a_key_is_refused() -> None:
    with pytest.raises(InputError, match="--on-conflict is given without a unique key"):
        _submit_options({"on_conflict": "reject"})
