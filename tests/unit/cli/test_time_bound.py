"""Times on the command line that bound a list of jobs."""

from __future__ import annotations

import pytest

from jobmaster.cli.commands.job_inputs import TIME_BOUND
from jobmaster.model.errors import InputError


@pytest.mark.parametrize(
    ("text", "words"), [("2030-13-01", "is not a time"), ("2030-01-01T00:00:00", "has no time zone")]
)
def test_a_wrong_bound_is_wrong_input_and_no_wrong_due_time(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        TIME_BOUND.convert(text, None, None)
    assert type(caught.value) is InputError
