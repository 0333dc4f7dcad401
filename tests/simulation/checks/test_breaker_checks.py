"""The checks of circuit breakers count a report as of the time for which the master counts it."""

from __future__ import annotations

import pytest

from tests.simulation.checks.breakers import BreakerChecks
from tests.simulation.master.tables import BreakerRow, Tables

CLOSED = BreakerRow("resource", "CLOSED", 0, 0, None, 0.5, 1.0, 3, 0.25, 2, 0, 1_000_000, "", "")
"""Since a second after the beginning: three runs within a second open it."""


@pytest.mark.parametrize(("second", "unjustified"), [(b"agent 1", 0), (b"agent 2", 1)])
def test_a_report_after_the_clock_was_put_back_counts_with_the_one_before_of_its_agent(
    second: bytes, unjustified: int
) -> None:
    broken: list[tuple[str, str]] = []
    checks = BreakerChecks(lambda *what: broken.append(what))
    checks.reported("resource", b"agent 1", 1_140_000, 1, 1)
    checks.reported("resource", second, 890_000, 2, 2)
    opened = CLOSED._replace(state="OPEN", epoch=1, changed_us=895_000, until_us=1_145_000, actor="breaker")
    checks.changes(Tables(), CLOSED, opened)
    assert len(broken) == unjustified
