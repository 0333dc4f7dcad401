"""The line of ``jobmaster doctor`` about circuit breakers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from jobmaster.doctor.checks import _breakers
from jobmaster.doctor.findings import CheckStatus

NOW_US = 2_000_000_000_000_000


def row(state: str, **parts: Any) -> dict[str, Any]:
    usual = {
        "name": "stripe", "state": state, "changed_us": NOW_US - 90_000_000, "until_us": None, "trial_jobs": [],
        "succeeded": 0, "half_open": 5, "reason": "12 of 20 runs have failed", "actor": "breaker",
    }  # fmt: skip
    return {**usual, **parts}


@pytest.mark.parametrize(
    ("rows", "status", "detail"),
    [
        ([], CheckStatus.OK, "no handler has one"),
        ([row("CLOSED")], CheckStatus.OK, "1 circuit breaker(s), none is open"),
        (
            [row("OPEN", until_us=NOW_US + 30_000_000)],
            CheckStatus.WARN,
            "stripe is OPEN for 1m 30s, half-open in 30.0s: 12 of 20 runs have failed (breaker)",
        ),
        (
            [row("OPEN", reason="maintenance", actor="ann")],
            CheckStatus.WARN,
            "stripe is OPEN for 1m 30s, until it is closed: maintenance (ann)",
        ),
        (
            [row("HALF_OPEN", trial_jobs=[UUID(int=1)], succeeded=2)],
            CheckStatus.WARN,
            "stripe is HALF_OPEN for 1m 30s, 1 job(s) try the resource, 2 of 5 have succeeded",
        ),
    ],
)
def test_a_breaker_that_holds_jobs_back_is_named_with_what_ends_it(
    rows: list[dict[str, Any]], status: CheckStatus, detail: str
) -> None:
    finding = _breakers(rows, NOW_US)
    assert (finding.name, finding.status, finding.detail) == ("breakers", status, detail)
    if status is CheckStatus.WARN:
        assert "jobmaster breaker close stripe" in finding.fix
