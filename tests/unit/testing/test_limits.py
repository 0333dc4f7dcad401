"""Limits of a cluster in memory: what cannot be meant is refused as in production."""

from __future__ import annotations

from typing import Any

import pytest

from jobmaster import InputError
from jobmaster.testing import Jobs


@pytest.mark.parametrize(
    "values",
    [
        {"running": 0},
        {"running": -1},
        {"running": True},
        {"rate": 0},
        {"rate": "0/s"},
        {"rate": -1.0},
        {"rate": 1, "burst": 0},
        {},
    ],
)
async def test_a_limit_of_nothing_is_refused_and_the_values_stay(jobs: Jobs, values: dict[str, Any]) -> None:
    limits = jobs.cluster.limits
    await limits.set("stripe", 5, force=True)
    with pytest.raises(InputError):
        await limits.set("stripe", values.pop("running", None), **values)
    assert [each.running for each in await limits.list()] == [5]
