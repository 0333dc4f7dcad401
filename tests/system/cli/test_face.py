"""What every command has in common: help, options, errors, exit codes, tables. Nothing here needs a server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import click
import pytest

from jobmaster.cli import failures
from jobmaster.cli.commands.job_inputs import moment
from jobmaster.cli.failures import failure_json, failure_of, failure_text, guarded
from jobmaster.cli.invocation import Invocation
from jobmaster.cli.main import COMMANDS, root
from jobmaster.cli.tables import Column, Output, clean, display_width, render
from jobmaster.model import errors
from jobmaster.model.job_view import iso
from tests.system.cli.conftest import REPOSITORY, Result

Inside = Callable[..., Result]


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group below, with its words."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands(root))


# ---------------------------------------------------------------- help


def test_the_list_of_commands_matches_the_help_of_each_command() -> None:
    said = {name: (ALL[(name,)].help or "").splitlines()[0] for name in COMMANDS}
    assert said == {name: line for name, (_, line) in COMMANDS.items()}


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_has_help_and_the_common_options(inside: Inside, words: tuple[str, ...]) -> None:
    result = inside(*words, "--help")
    assert result.code == 0
    assert result.err == ""
    for option in ("--set", "--output", "--debug", "--verbose", "--quiet", "--config"):
        assert option in result.out, option
    assert f"[{'|'.join(Output)}]" in result.out, "-o takes the same formats everywhere"


@pytest.mark.parametrize(
    "words", [w for w, c in ALL.items() if not isinstance(c, click.Group) and w[0] != "config"], ids=" ".join
)
def test_help_shows_an_example(words: tuple[str, ...]) -> None:
    if words not in (("dev", "stop"), ("dev", "status")):
        assert "jobmaster " + " ".join(words) in (ALL[words].help or "")


def test_help_imports_no_driver() -> None:
    """Neither a driver nor YAML nor the metrics library is needed to print help: that is what makes it quick."""
    script = (
        "import sys, jobmaster.cli.main as m; m.run(['--help']);"
        "print([n for n in ('asyncpg', 'redis', 'yaml', 'prometheus_client', 'anyio', 'uvloop', 'asyncio')"
        " if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "Commands:" in done.stdout


# ---------------------------------------------------------------- options


def test_options_before_and_after_the_command(inside: Inside) -> None:
    before = inside("-o", "json", "version")
    assert before.json["jobmaster"]
    assert inside("version", "-o", "json").json == before.json
    assert inside("version").out.startswith("jobmaster ")


def test_the_later_output_format_counts(inside: Inside) -> None:
    assert inside("-o", "json", "version", "-o", "table").out.startswith("jobmaster ")


def test_settings_come_from_file_and_command_line_wherever_they_stand(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("cluster: from-file\n")
    for words in (
        ("--config", "c.yaml", "--set", "leases.grace=7s", "config", "show", "-o", "json"),
        ("config", "show", "--config", "c.yaml", "--set", "leases.grace=7s", "-o", "json"),
        ("-o", "json", "--set", "leases.grace=7s", "--config", "c.yaml", "config", "show"),
    ):
        tree = inside(*words).json
        assert tree["cluster"] == "from-file"
        assert "7" in str(tree["leases"]["grace"])


def test_config_validate_takes_the_option_too(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("cluster: NO\n")
    assert inside("config", "validate", "--config", "bad.yaml").code == 78
    assert inside("--config", "bad.yaml", "config", "validate").code == 78
    assert inside("config", "validate").code == 0


# ---------------------------------------------------------------- errors


def test_usage_errors_exit_with_2_and_name_the_help_command(inside: Inside) -> None:
    for words in (
        ("jobb",),
        ("job", "sbmit"),
        ("job", "list", "--stat"),
        ("job", "list", "--limit", "0"),
        ("job", "show"),
    ):
        result = inside(*words)
        assert result.code == 2, words
        assert result.out == ""
        assert re.fullmatch(r"error: .* \(see jobmaster.* --help\)\n", result.err), result.err


def test_usage_errors_as_json(inside: Inside) -> None:
    result = inside("job", "list", "--limit", "none", "-o", "json")
    assert result.code == 2
    assert result.error["code"] == "usage"


def test_no_server_is_one_line_with_the_way_out(inside: Inside) -> None:
    for words in (
        ("status",),
        ("job", "list"),
        ("agent", "list"),
        ("agent", "run"),
        ("db", "migrate"),
        ("store", "check"),
    ):
        result = inside(*words)
        assert result.code == 69, words
        assert result.err.count("\n") == 1
        assert "no PostgreSQL server is running in" in result.err
        assert "start `jobmaster dev`, or give master.dsn" in result.err
        assert "Traceback" not in result.err


def test_an_error_as_json_has_code_message_and_hint(inside: Inside) -> None:
    result = inside("status", "-o", "json")
    assert result.out == ""
    assert set(result.error) == {"code", "message", "hint"}
    assert result.error["code"] == "unavailable"


def test_a_bad_configuration_lists_every_problem(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("clustr: x\nleases: {lease: soon}\n")
    result = inside("status", "--config", "bad.yaml")
    assert result.code == 78
    assert "bad.yaml:1:1" in result.err
    assert "bad.yaml:2:" in result.err
    as_json = inside("status", "--config", "bad.yaml", "-o", "json")
    assert len(as_json.error["problems"]) == 2


def test_input_is_checked_before_any_server_is_asked(inside: Inside) -> None:
    for words, said in (
        (("job", "submit", "h", "width"), "not KEY=VALUE"),
        (("job", "submit", "h", "a=1", "a=2"), "given twice"),
        (("job", "submit", "h", "--args", "{"), "not JSON"),
        (("job", "submit", "h", "--args", "[1]"), "must be a JSON object"),
        (("job", "submit", "h", "--args", "@no-such-file"), "cannot be read"),
        (("job", "submit", "h", "--at", "tomorrow"), "not a time"),
        (("job", "submit", "h", "--at", "2030-01-01T00:00:00"), "no time zone"),
        (("job", "submit", "h", "--after", "soon"), "duration"),
        (("job", "submit", "h", "--meta", "x"), "not KEY=TEXT"),
    ):
        result = inside(*words)
        assert result.code == 2, words
        assert said in result.err, result.err


def test_agent_run_names_a_module_that_cannot_be_imported(inside: Inside) -> None:
    result = inside("agent", "run", "--handlers", "no_such_module_anywhere")
    assert result.code == 78
    assert "no_such_module_anywhere" in result.err


def test_agent_run_names_a_schedule_that_cannot_work(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "often.yaml").write_text("schedules: {often: {handler: gone, every: 5m}}\n")
    result = inside("agent", "run", "--config", "often.yaml", "--handlers", "jobmaster.demo.handlers")
    assert result.code == 78
    assert "schedules.often: there is no handler 'gone'" in result.err


def test_agent_run_names_the_agents_there_are(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("agents: {one: {}, two: {}}\n")
    for words in ((), ("--name", "three")):
        result = inside("agent", "run", "--config", "two.yaml", *words)
        assert result.code == 78
        assert "one, two" in result.err


CODES = {
    "InputError": 2,
    "UnknownHandler": 2,
    "InvalidArguments": 2,
    "NotFound": 3,
    "Conflict": 4,
    "WaitTimeout": 6,
    "JobFailed": 1,
    "Unavailable": 69,
    "OutcomeUnknown": 69,
    "CodeError": 70,
    "Refused": 77,
    "SchemaMismatch": 77,
    "BucketsFull": 77,
    "ConfigError": 78,
}


@pytest.mark.parametrize(("name", "code"), CODES.items(), ids=CODES)
def test_exit_codes(name: str, code: int) -> None:
    error = getattr(errors, name)("what is wrong", hint="how to mend it")
    failure = failure_of(error)
    assert failure.exit_code == code
    assert failure_text(failure) == "error: what is wrong (how to mend it)"
    assert json.loads(failure_json(failure))["error"]["hint"] == "how to mend it"


def test_every_error_class_has_a_documented_code() -> None:
    page = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    known = {
        value.exit_code
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.JobMasterError)
    }
    assert known <= documented
    assert {0, 5, 130} <= documented


def test_every_command_is_documented() -> None:
    page = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    missing = [" ".join(words) for words, command in ALL.items() if f"`jobmaster {' '.join(words)}" not in page]
    assert missing == []


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


def test_an_unexpected_error_is_70_with_a_traceback_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(ZeroDivisionError("x")), Invocation(), ()) == 70
    assert capsys.readouterr().err == (
        "error: unexpected error: ZeroDivisionError: x (run it again with --debug and report it)\n"
    )
    assert guarded(raising(ZeroDivisionError("x")), Invocation(debug=True), ()) == 70
    assert "Traceback" in capsys.readouterr().err


def test_the_reason_inside_a_group_is_reported() -> None:
    group = ExceptionGroup("several", [errors.NotFound("there is no job x")])
    assert failure_of(group).exit_code == 3


def test_interrupted_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(KeyboardInterrupt()), Invocation(), ()) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert guarded(raising(KeyboardInterrupt()), Invocation(output=Output.JSON), ()) == 130
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "interrupted"


JOB = "019a9f3c-55d1-7000-8000-000000000001"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), errors.WaitTimeout("not there"), errors.Unavailable("down")])
def test_whatever_ends_a_call_names_the_job_that_it_has_handed_in(
    capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    guarded(raising(error), Invocation(submitted_id=JOB), ())
    assert f"the job is {JOB}: jobmaster job show {JOB}" in capsys.readouterr().err
    guarded(raising(error), Invocation(submitted_id=JOB, output=Output.JSONL), ())
    assert json.loads(capsys.readouterr().err)["error"]["job_id"] == JOB


def test_an_unknown_outcome_names_the_job() -> None:
    failure = failure_of(errors.OutcomeUnknown("no answer", id_bytes=[UUID(JOB).bytes]))
    assert JOB in failure_text(failure)
    assert json.loads(failure_json(failure))["error"]["job_id"] == JOB


@pytest.mark.parametrize(
    ("redirection", "said"), [(">/dev/full", "cannot be written: No space left"), (">&-", "standard output is closed")]
)
def test_output_that_cannot_be_written_is_an_error(redirection: str, said: str) -> None:
    for words in ("db sql", "version", "config show -o json"):
        command = f"{sys.executable} -m jobmaster.cli.main {words} {redirection}"
        done = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert said in done.stderr
        assert "report it" not in done.stderr
        assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("given", ["2030-01-01", "2030-01-01+01:00", "2030-01-01T10:00"])
def test_the_times_that_a_hint_names_are_taken(given: str) -> None:
    with pytest.raises(errors.InvalidDueTime) as caught:
        moment(given, "--at")
    offered = re.findall(r"\d{4}-\d\d-\d\d\S*", caught.value.hint or "")
    assert len(offered) == 2
    for text in offered:
        assert moment(text, "--at").tzinfo is not None


def test_a_reader_that_has_gone_is_no_error() -> None:
    for words in ("db sql", "config show -o jsonl"):
        command = f"{sys.executable} -m jobmaster.cli.main {words} | head -1"
        done = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1


def test_a_reader_that_has_gone_is_no_error_in_a_group_of_tasks_either(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    gone = os.fdopen(writing, "w")
    abandoned: list[bool] = []
    monkeypatch.setattr(failures, "_abandon_output", lambda: abandoned.append(True))

    def command() -> None:
        try:
            click.echo("x", file=gone)
        except BrokenPipeError as error:
            raise ExceptionGroup("several", [error]) from None

    assert guarded(command, Invocation(), ()) == 1
    assert abandoned == [True]
    with contextlib.suppress(BrokenPipeError):
        gone.close()


# ---------------------------------------------------------------- tables


def test_columns_line_up_whatever_the_script() -> None:
    rows: list[dict[str, object]] = [{"a": "日本", "n": 5}, {"a": "e\u0301tude", "n": 12345}, {"a": None, "n": None}]
    lines = render(rows, (Column("NAME", "a"), Column("N", "n", right=True), Column("DEEP", "a.b"))).splitlines()
    assert lines == ["NAME       N  DEEP", "日本       5  -", "e\u0301tude  12345  -", "-          -  -"]
    assert display_width("日本") == 4
    assert display_width("e\u0301") == 1


def test_text_cannot_steer_the_terminal() -> None:
    nasty = "\x1b[2Jx\r\n\u202ey\x00"
    assert clean(nasty) == "\\x1b[2Jx\\r\\n\\u202ey\\x00"
    assert "\x1b" not in render([{"a": nasty}], (Column("A", "a"),))


def test_long_cells_are_cut_on_a_terminal_and_nowhere_else() -> None:
    rows, columns = [{"a": "x" * 500}], (Column("A", "a"),)
    line = render(rows, columns, 80).splitlines()[1]
    assert len(line) == 72
    assert line.endswith("...")
    assert render(rows, columns).splitlines()[1] == "x" * 500


def test_reasons_are_wrapped_on_a_terminal_and_never_cut() -> None:
    reason = " ".join(f"word{number}" for number in range(60))
    rows = [{"n": "store-one", "why": reason}, {"n": "b", "why": "short"}]
    columns = (Column("NAME", "n"), Column("WHY", "why", whole=True))
    for width in (10, 40, 80, 200):
        title, *lines, last = render(rows, columns, width).splitlines()
        assert title.startswith("NAME       WHY")
        assert " ".join(line[11:] for line in lines) == reason
        assert lines[0].startswith("store-one  word0")
        assert all(line.startswith(" " * 11) for line in lines[1:])
        assert last == "b          short"
        assert max(map(len, lines)) <= max(width, 11 + 32)
    assert render(rows, columns).splitlines()[1:] == [f"store-one  {reason}", "b          short"]


def test_a_pipe_gets_the_whole_reason_of_a_store_and_a_terminal_gets_it_wrapped(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = f"agent store 'default' at redis://127.0.0.1:1/0 cannot be reached: {'because ' * 30}end"
    rows = [{"name": "default", "state": reason}]
    from jobmaster.cli import tables
    from jobmaster.cli.commands import store

    async def looked(*_: object, **__: object) -> list[dict[str, str]]:
        return rows

    monkeypatch.setattr(store, "_each", looked)
    assert reason in inside("store", "check").out
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    out = inside("store", "check").out
    assert max(map(len, out.splitlines())) < 100  # a reason gets 32 cells at least
    assert "".join(out.split()).count("because") == 30


def test_times_are_utc_and_absent_ones_stay_absent() -> None:
    assert iso(1_700_000_000_123_456) == "2023-11-14T22:13:20.123Z"
    assert iso(None) is None
    assert iso(0) is None
    assert iso(10**18) == f"{10**18}us"
