"""``python -m benchmarks.first_steps``: what a newcomer types and waits for, from ``git clone`` to the result of a first job.

The two files are the first two of the README, and the commands are those that it types in a clone; both are read from it.
The clone comes from the last commit of this repository, the virtual environment is a new one, and the servers keep their data
in an empty home. Downloads of packages count, so a warm cache of pip makes it faster. Beside it: the time of ``import
jobmaster``, and of one ``run_handler`` without servers, each with its ratio to a piece of the standard library that is
measured in turns with it: these ratios can be compared between machines and days, the times cannot.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.support.report import median, output_options, progress, show

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 600.0
_COMMANDS = re.compile(r"^```console\n(\$ git clone .*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
_RUN_HANDLER = """
import time
from jobmaster import Handlers, call
from jobmaster.testing import run_handler
handlers = Handlers()
@handlers.job(name="add")
async def add(a: int, b: int) -> int:
    return a + b
run_handler(call(add, 1, 2))
times = []
for _ in range(200):
    began = time.perf_counter()
    assert run_handler(call(add, 1, 2)) == 3
    times.append(time.perf_counter() - began)
print(sorted(times)[100])
"""


_ASYNCIO_RUN = """
import asyncio, time
async def add(a, b):
    return a + b
asyncio.run(add(1, 2))
times = []
for _ in range(200):
    began = time.perf_counter()
    assert asyncio.run(add(1, 2)) == 3
    times.append(time.perf_counter() - began)
print(sorted(times)[100])
"""


def files() -> dict[str, str]:
    """The first files of the README: name -> text."""
    return dict(_FILE.findall((ROOT / "README.md").read_text(encoding="utf-8"))[:2])


def commands() -> list[str]:
    """What the README types in a clone."""
    found = _COMMANDS.search((ROOT / "README.md").read_text(encoding="utf-8"))
    if found is None:
        raise click.ClickException("README.md has no block that begins with `$ git clone`")
    return [line.removeprefix("$ ") for line in found[1].splitlines()]


def typed_lines() -> int:
    """Lines with code in the files, and the commands."""
    return sum(1 for text in files().values() for line in text.splitlines() if line.strip()) + len(commands())


def first_job(folder: Path) -> dict[str, float]:
    """Do all of it; seconds of each step."""
    home = folder / "home"
    home.mkdir()
    clone = folder / "jobmaster"
    env = {name: value for name, value in os.environ.items() if not name.startswith("JOBMASTER_")} | {"HOME": str(home)}
    seconds: dict[str, float] = {}

    def step(name: str, command: list[str], cwd: Path) -> str:
        began = time.perf_counter()
        ran = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
        seconds[name] = round(time.perf_counter() - began, 2)
        if ran.returncode:
            raise click.ClickException(f"{' '.join(command)} ended with {ran.returncode}: {ran.stderr[-2000:]}")
        progress(f"{name}: {seconds[name]} s")
        return ran.stdout

    cloning, installing, starting, producing = (shlex.split(one.split("&&")[0]) for one in commands())
    step("clone", [*(str(ROOT) if "://" in word else word for word in cloning)], folder)
    step("install", installing, clone)
    for name, text in files().items():
        (clone / name).write_text(text)
    began = time.perf_counter()
    with (folder / "dev.log").open("w+") as log:
        cluster = subprocess.Popen(starting, cwd=clone, env=env, stdout=log, stderr=log)
        try:
            while "agent_started" not in (folder / "dev.log").read_text():
                if cluster.poll() is not None or time.perf_counter() - began > LIMIT_SECONDS:
                    raise click.ClickException(
                        f"jobmaster dev does not start: {(folder / 'dev.log').read_text()[-2000:]}"
                    )
                time.sleep(0.02)
            seconds["cluster"] = round(time.perf_counter() - began, 2)
            answer = step("job", producing, clone)
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.wait(LIMIT_SECONDS)
    if not answer.strip():
        raise click.ClickException("the producer has printed no result")
    return seconds


def seconds_of(program: str) -> float:
    """What a program prints, in a new process."""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(ran.stdout)


def pairs(ours: str, base: str, runs: int) -> tuple[float, float]:
    """Milliseconds of a program, and how many times as long it takes as another: medians of runs in turns."""
    found = [(seconds_of(ours), seconds_of(base)) for _ in range(runs)]
    return median([mine * 1000 for mine, _ in found]), median([mine / its for mine, its in found])


def small_figures(runs: int) -> dict[str, Any]:
    """Those that need no servers."""
    import_ms, import_ratio = pairs(_IMPORT.format("jobmaster"), _IMPORT.format("asyncio"), runs)
    run_ms, run_ratio = pairs(_RUN_HANDLER, _ASYNCIO_RUN, runs)
    return {
        "import_ms": round(import_ms, 1),
        "import_over_import_of_asyncio": round(import_ratio, 2),
        "run_handler_ms": round(run_ms, 3),
        "run_handler_over_asyncio_run": round(run_ratio, 2),
    }


def run(runs: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="jobmaster-first-") as folder:
        steps = first_job(Path(folder))
    return {
        "typed_lines": typed_lines(),
        "seconds": round(sum(steps.values()), 1),
        "steps": steps,
        **small_figures(runs),
        "runs": runs,
    }


@click.command()
@click.option("--runs", default=7, show_default=True, help="Processes for the time of the import and of run_handler.")
@output_options
def main(runs: int, as_json: bool, save: bool) -> None:
    """From git clone to the result of the first job: lines that are typed, and seconds."""
    show("first_steps", run(runs), as_json=as_json, save=save)


if __name__ == "__main__":
    main()
