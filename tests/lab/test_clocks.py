"""All processes of a host have its clocks, and its witnesses have the right time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.cluster.fleet import REPOSITORY
from tests.chaos.processes.witness import read
from tests.lab.clocks import HostClocks

_SEEN = """
import os, sys, time
from pathlib import Path
from tests.chaos.processes.witness import Phase, WitnessLine, WitnessWriter
witness = WitnessWriter(Path(sys.argv[1]), "test")
print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
sys.stdin.readline()
if (child := os.fork()) == 0:
    witness.write(WitnessLine(phase=Phase.BEGAN))
    print(time.time(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_step_of_a_wall_clock_is_seen_by_all_processes_of_its_host_and_not_by_witnesses(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        pytest.skip("time namespaces need root on Linux")
    clocks = HostClocks(tmp_path / "clocks", ("one", "two"))
    if clocks.unavailable is not None:
        pytest.skip(clocks.unavailable)
    found = []
    for host in ("one", "two"):
        program = subprocess.Popen(
            [*clocks.prefix(host), sys.executable, "-c", _SEEN, str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
        )  # fmt: skip
        assert program.stdout is not None
        wall, boot = map(float, program.stdout.readline().split())
        clocks.step("one", -3600)
        found.append((wall, boot, float(program.communicate("\n")[0])))
        clocks.step("one", 0)
    now, boot = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    (one, one_boot, one_stepped), (two, two_boot, two_stepped) = found
    for right in (one, two, two_stepped, one_stepped + 3600, *(line.at for line in read(tmp_path))):
        assert right == pytest.approx(now, abs=300)
    assert one_boot - boot == pytest.approx(86_400, abs=300)
    assert two_boot - boot == pytest.approx(2 * 86_400, abs=300)
