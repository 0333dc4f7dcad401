"""Does what a page of the documentation tells its reader to do: writes its files, types its commands, executes its snippets.

* A block whose first line is a comment with a file name (``# tasks.py``) is that file.
* Another Python block is a snippet. It runs in a process of its own, inside ``async with jobmaster.connect(...) as
  cluster:``, with the public names of ``jobmaster`` and of the page's modules.
* A block below the line ``<!-- not run: REASON -->`` is left out: it is code of another system, or needs what no test has.
* In a ``console`` block, a line that begins with ``$`` is a command, and the lines below it are expected in its output, in
  their order; ``...`` stands for any text within a line. A command with the comment ``# fails`` has to exit with an error. A
  command that does not end (an agent, the development cluster, a web server) goes on until the page ends.

The product's commands run from this environment, in an empty folder, with an empty home.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

from tests.support.forked_commands import run_command
from tests.support.patience import patient
from tests.support.processes import free_port
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
START_SECONDS = 60.0
COMMAND_SECONDS = 120.0

_BLOCK = re.compile(
    r"^ *(?:<!-- not run: (?P<reason>[^\n]+?) -->\s*)?```(?P<language>\w*)(?P<rest>[^\n]*)\n(?P<text>.*?)^ *```",
    re.MULTILINE | re.DOTALL,
)
_FILE_NAME = re.compile(r"(?:#|--|//) ([\w./-]+\.(?:py|yaml|toml|sql|txt))\s*\n")
_ELSEWHERE = re.compile(r"^(\.venv/bin/|pip|python3? -m venv|source|git|make|cd|apt|docker)\b")
"""Commands of the installation; the tests have their environment already."""
_GOES_ON = re.compile(r"^jobmaster (dev(?! (status|stop))|agent run|web$)|^uvicorn |runserver")
_PORT = re.compile(r"\b(802\d)\b")
"""Ports of web servers on pages; each is another, free one here."""


class Block(NamedTuple):
    """A block of code on a page."""

    language: str
    text: str
    line: int
    """Of its fence, from 1."""
    reason: str | None
    """Why it is not run; ``None``: it is."""


def all_blocks(text: str) -> list[Block]:
    """Every block of code in the text of a page, also those in lists."""
    return [
        Block(
            f"{found['language']}{found['rest'].rstrip()}",
            textwrap.dedent(found["text"]),
            text.count("\n", 0, found.start("language")) + 1,
            found["reason"],
        )
        for found in _BLOCK.finditer(text)
    ]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of every block of a page that is run."""
    found = all_blocks(page.read_text(encoding="utf-8"))
    return [(block.language.partition(" ")[0], block.text) for block in found if block.reason is None]


class PageFailed(AssertionError):
    """The page does not work as it is written."""


class PageRunner:
    """One page, in one folder.

    Args:
        page: the Markdown file.
        folder: an empty folder.
    """

    def __init__(self, page: Path, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._home = folder / "home"
        self._home.mkdir()
        self._project = folder / "project"
        self._project.mkdir()
        self._modules: list[str] = []
        self._ports = {"8020": free_port()}
        self._background: list[subprocess.Popen[bytes]] = []
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("JOBMASTER_")},
            "HOME": str(self._home),
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": f"{self._project}{os.pathsep}{REPOSITORY}{os.pathsep}{REPOSITORY / 'agents'}",
            "COLUMNS": "200",
            "JOBMASTER_WEB__PORT": str(self._ports["8020"]),
        }
        self.done: list[str] = []
        """What was done: a file, a command or a snippet each."""

    def run(self) -> None:
        """The whole page, from top to bottom."""
        try:
            for language, text in blocks(self._page):
                self._block(language, text)
        finally:
            self._stop()

    def run_with(self, prelude: Path) -> None:
        """The snippets alone, as one program beside a development cluster with the handlers of the prelude."""
        name = f"page_{prelude.stem}"
        (self._project / f"{name}.py").write_text(prelude.read_text(encoding="utf-8"))
        whole = "\n\n".join(text for language, text in blocks(self._page) if language == "python")
        (self._project / "the_page.py").write_text(whole)  # for preludes whose agents run the handlers of the page
        try:
            self._start(f"jobmaster dev --handlers {name}")
            self._finish(
                [sys.executable, "-m", "tests.support.pages.snippets", str(self._page), name], self._page.name, []
            )
        finally:
            self._stop()

    def _block(self, language: str, text: str) -> None:
        named = _FILE_NAME.match(text)
        if named:
            self._write(named[1], text)
        elif language == "python":
            self._snippet(text)
        elif language == "console":
            self._console(text)

    def _write(self, name: str, text: str) -> None:
        path = self._project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.suffix == ".py" and "Handlers(" in text and path.stem not in self._modules:
            self._modules.append(path.stem)
        self.done.append(f"file {name}")

    def _snippet(self, text: str) -> None:
        program = "\n".join(
            [
                "import asyncio, datetime, logging",
                "from datetime import timedelta",
                "import jobmaster",
                "from jobmaster import *",
                *(f"from {module} import *" for module in self._modules),
                "async def main():",
                f"    async with jobmaster.connect({'handlers=handlers' if self._modules else ''}) as cluster:",
                textwrap.indent(text, " " * 8),
                "        pass",
                "asyncio.run(main())",
            ]
        )
        self._finish([sys.executable, "-c", program], text, [])

    def _console(self, text: str) -> None:
        commands: list[tuple[str, list[str]]] = []
        for line in text.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            elif commands:
                commands[-1][1].append(line)
        for typed, expected in commands:
            typed = _PORT.sub(lambda port: str(self._ports.setdefault(port[1], free_port())), typed)
            command, _, comment = (part.strip() for part in typed.partition("   #"))
            if _ELSEWHERE.match(command):
                continue
            if _GOES_ON.match(command):
                self._start(command)
            else:
                self._finish(["bash", "-c", command], command, expected, fails=comment.startswith("fails"))

    def _start(self, command: str) -> None:
        log = self._folder / f"background-{len(self._background)}.log"
        agents = self._agents()
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._project,
                env=self._env,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._background.append(process)

        def ready() -> bool:
            if process.poll() is not None:
                raise PageFailed(f"{self._page.name}: `{command}` ended with {process.returncode}:\n{log.read_text()}")
            if command == "jobmaster web":
                return "http://" in log.read_text()
            if command.startswith("jobmaster"):
                return self._agents() > agents
            return "running on" in log.read_text().lower() or "starting development server" in log.read_text().lower()

        wait_until(ready, START_SECONDS, lambda: f"the start of `{command}`:\n{log.read_text()}")
        self.done.append(f"started {command}")

    def _agents(self) -> int:
        asked = run_command(
            ["status", "-o", "json"], env=self._env, cwd=self._project, seconds=patient(COMMAND_SECONDS)
        )
        found = re.search(r'"alive": (\d+)', asked.stdout)
        return int(found[1]) if found else 0

    def _finish(self, arguments: list[str], shown: str, expected: list[str], *, fails: bool = False) -> None:
        ran = subprocess.run(
            arguments,
            cwd=self._project,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=patient(COMMAND_SECONDS),
        )
        if (ran.returncode != 0) is not fails:
            raise PageFailed(f"{self._page.name}: exit {ran.returncode} of\n{shown}\n{ran.stdout}")
        position = 0
        for line in expected:
            if line.strip() in ("", "..."):
                continue
            pattern = ".*?".join(re.escape(part) for part in re.split(r"\.\.\.", line.strip()))
            pattern = re.sub(r"(\\ )+", r"\\s+", pattern)
            found = re.compile(pattern).search(ran.stdout, position)
            if found is None:
                raise PageFailed(f"{self._page.name}: no line {line!r} in the output of\n{shown}\n{ran.stdout}")
            position = found.end()
        self.done.append(shown)

    def _stop(self) -> None:
        for process in reversed(self._background):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in reversed(self._background):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
