"""A newcomer: from nothing to a rescue that is watched in a browser. ``python -m tests.newcomer [--limit SECONDS] [--json]``.

It needs Playwright, which ``make install`` puts into ``.venv``, and a Chromium of the system. A clean clone of this commit,
``make install``, ``make demo-watch``, and the browser on the map of the pages. It is there before Enter is pressed. Then an
agent is killed: it leaves the map without a reload, and the page of rescues names its buckets with their rescuer. Each step
has its time; exit code 1 when one of them fails, or when all together take longer than the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 180.0
"""Of all steps, with the installation."""
PATIENCE_SECONDS = 1800.0
"""Ends a hang."""
ADDRESS = re.compile(r"jobmaster web: (http://\S+)")
KILL, END = "press Enter: agent two is killed", "press Enter: the pages"
VICTIM, RESCUER = "two", "three"
LISTEN = """() => {
  window.told = { states: [], left: false };
  const names = {};
  document.addEventListener("map", ({ detail }) => {
    for (const [n, id, name] of detail.agents ?? []) {
      if (id === null && names[n] === "%s") window.told.left = true;
      if (id !== null) names[n] = name;
    }
    for (const each of detail.new ?? []) window.told.states.push(each[7]);
    for (const each of detail.set ?? []) window.told.states.push(each[1]);
  });
}"""
"""Notes what the stream of the map says: agents that come and go, and numbers of states of buckets."""
STATES = ("ACTIVE", "COMPLETING", "LOST", "DRAINING", "READY_TO_DELETE", "FROZEN")


class NewcomerFailed(Exception):
    """A step of which the newcomer does not see the end; the text is the reason."""


def until(what: str, condition: Callable[[], object], evidence: Callable[[], str] = str) -> None:
    """Wait for a condition.

    Raises:
        NewcomerFailed: it does not come true.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise NewcomerFailed(f"{what} did not come within {PATIENCE_SECONDS:g} s: {evidence()[-800:]}")
        time.sleep(0.05)


def require_browser() -> str:
    """Path of the Chromium of the system.

    Raises:
        NewcomerFailed: Chromium, or Playwright, is missing.
    """
    if find_spec("playwright") is None:
        raise NewcomerFailed(
            f"{sys.executable} has no Playwright: make install, then .venv/bin/python -m tests.newcomer"
        )
    path = shutil.which("chromium")
    if path is None:
        raise NewcomerFailed("there is no chromium on the PATH: apt-get install chromium")
    return path


class Demo:
    """``make demo-watch`` in a terminal; what it prints is in ``log``."""

    def __init__(self, clone: Path, environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                ["make", "--no-print-directory", "demo-watch"], cwd=clone, env=environment, stdin=subprocess.PIPE, stdout=out,
                stderr=out, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()

    def said(self) -> str:
        """All that it has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def until_said(self, text: str) -> None:
        """Wait for a text; the end of the program before it is an error."""
        until(repr(text), lambda: text in self.said() or self._process.poll() is not None, self.said)
        if text not in self.said():
            raise NewcomerFailed(f"make demo-watch ended before it said {text!r}: {self.said()[-800:]}")

    def enter(self) -> None:
        """Press Enter."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def ends_well(self) -> str:
        """The last line, when its exit code is 0."""
        if code := self._process.wait(PATIENCE_SECONDS):
            raise NewcomerFailed(f"make demo-watch ended with {code}: {self.said()[-800:]}")
        return self.said().strip().splitlines()[-1]


class Newcomer:
    """One run; ``seconds`` has the time of each step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clone = folder / "jobmaster"
        without = ("MAKE", "MFLAGS", "PYTHON", "JOBMASTER_")
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(without)}
        self.seconds: dict[str, float] = {}
        self.seen: dict[str, object] = {}

    def play(self) -> None:
        """Every step, in its order. What the last one needs is looked for before the first one."""
        chromium = require_browser()
        self._timed(
            "clone", lambda: self._ran("git", "clone", "--quiet", f"file://{ROOT}", self._clone, cwd=self._folder)
        )
        self._timed("make install", lambda: self._ran("make", "install", cwd=self._clone))
        with Demo(self._clone, self._environment, self._folder / "log") as demo:
            self._timed("a cluster at work", lambda: demo.until_said(KILL))
            self._timed("kill and rescue in the browser", lambda: self._watch(demo, chromium))
            demo.until_said(END)
            demo.enter()
            self.seen["demo"] = demo.ends_well()

    def _timed(self, name: str, step: Callable[[], object]) -> None:
        began = time.monotonic()
        step()
        self.seconds[name] = round(time.monotonic() - began, 1)
        sys.stderr.write(f"{name:<32}{self.seconds[name]:>6.1f} s\n")

    def _ran(self, *argv: str | Path, cwd: Path) -> None:
        done = subprocess.run(
            [str(each) for each in argv], cwd=cwd, env=self._environment, capture_output=True, text=True,
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise NewcomerFailed(f"{argv[0]} {argv[1]}: exit code {done.returncode}: {done.stderr[-600:]}")

    def _watch(self, demo: Demo, chromium: str) -> None:
        from playwright.sync_api import Error, sync_playwright

        until("the address of the pages", lambda: ADDRESS.search(demo.said()), demo.said)
        address = ADDRESS.findall(demo.said())[0]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.set_default_timeout(PATIENCE_SECONDS * 1000)
            try:
                self._rescue(page, address, demo)
            except Error as error:
                raise NewcomerFailed(f"the browser: {error.message[:800]}") from None
            finally:
                browser.close()

    @staticmethod
    def _told(page: Page) -> dict[str, Any]:
        """What the stream has said. It is asked again and again, because the pages allow no code in texts."""
        found: dict[str, Any] = page.evaluate("window.told")
        return found

    def _rescue(self, page: Page, address: str, demo: Demo) -> None:
        """What the newcomer sees, from the living agent to the list of its buckets."""
        page.add_init_script(f"({LISTEN % VICTIM})()")
        page.goto(f"{address}/map")
        until("the stream of the map", lambda: self._told(page)["states"])
        page.locator("#twin tbody tr", has_text=VICTIM).first.wait_for()
        demo.enter()
        until("an end of the agent on the map", lambda: self._told(page)["left"], demo.said)
        self.seen["states on the map"] = sorted({STATES[number] for number in self._told(page)["states"]})
        page.goto(f"{address}/rescues")
        rows = page.locator("table tbody tr", has_text=VICTIM)
        rows.filter(has_text=RESCUER).first.wait_for()
        self.seen["buckets rescued"] = rows.count()


def main(arguments: list[str]) -> int:
    """One run; 1 when a step failed, or when it took too long."""
    parser = argparse.ArgumentParser(prog="python -m tests.newcomer", description=main.__doc__)
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of all steps; default: %(default)g")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    chosen = parser.parse_args(arguments)
    # Sockets of servers need a short path.
    with tempfile.TemporaryDirectory(prefix="jm-") as scratch:
        newcomer = Newcomer(Path(scratch))
        try:
            newcomer.play()
        except NewcomerFailed as error:
            sys.stderr.write(f"FAILED: {error}\n")
            return 1
    total = round(sum(newcomer.seconds.values()), 1)
    report = {"seconds": total, "limit": chosen.limit, "steps": newcomer.seconds, **newcomer.seen}
    sys.stdout.write(json.dumps(report) + "\n" if chosen.json else "".join(f"{k:<24}{v}\n" for k, v in report.items()))
    if total > chosen.limit:
        sys.stderr.write(f"FAILED: {total} s, the limit is {chosen.limit:g} s\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
