"""``python -m tests.chaos.processes.agent CONFIG KIND``: an agent under its real supervisor, with a child of the tests' own.

For what cannot be done to the real command from outside: a wall clock that jumps, and guards that are left out.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

from jobmaster.settings.loader import load_settings
from jobmaster_agents.event_log import configure
from jobmaster_agents.supervisor import supervisor

_PR_SET_PDEATHSIG = 1


def main(config: str, kind: str) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    settings = load_settings(Path(config), {}, []).settings
    configure(settings.observability.log_level, settings.observability.log_format)
    plan = supervisor.SupervisorPlan(
        settings=settings,
        agent=kind,
        name=kind,
        processes=settings.agents[kind].processes,
        sys_path=tuple(sys.path),
        child_command=(sys.executable, "-m", "tests.chaos.processes.child"),
    )
    return supervisor.Supervisor(plan).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
