"""``python -m tests.crash_points.faulty_agent CONFIG NAME``: an agent whose child's ports have faults."""

from __future__ import annotations

import sys
from pathlib import Path

from jobmaster.settings.loader import load_settings
from jobmaster_agents.event_log import configure
from jobmaster_agents.supervisor import restart_policy, supervisor
from tests.support.processes import end_with_parent


def main(config: str, name: str) -> int:
    # It starts its child again at once, for ever: it must not outlive the test.
    end_with_parent()
    settings = load_settings(Path(config), {}, []).settings
    configure(settings.observability.log_level, settings.observability.log_format)
    restart_policy.STEADY_SECONDS = 0.0  # a test kills it many times: every death counts as the first
    plan = supervisor.SupervisorPlan(
        settings=settings,
        agent=name,
        name=name,
        processes=1,
        sys_path=tuple(sys.path),
        child_command=(sys.executable, "-m", "tests.crash_points.faulty_child"),
    )
    return supervisor.Supervisor(plan).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
