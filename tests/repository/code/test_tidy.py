"""The rules of the repository on the whole tree, and each rule on a bad sample, because a rule must be able to fail."""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.repository import tree as tree_of
from tests.repository.code import tidy

ROOT = Path(__file__).parents[3]
PRODUCT = ("jobmaster", "agents", "master_schema")
CODE = (*PRODUCT, "tests", "benchmarks")
MIGRATIONS = sorted((ROOT / "master_schema" / "migrations").glob("*.sql"))

LONG = {
    "agents/jobmaster_agents/agent.py:__init__": "it introduces every periodic task of an agent, once, by name",
    "agents/jobmaster_agents/bucket_worker.py:__init__": "it wires every station of a job's way, once, by name",
}
"""Functions that may be longer, and why."""

FRAGMENTS = {
    "jobmaster/agentstore/fences.py": "the fence's rule, apart from the store's many calls",
    "jobmaster/master/schema/index_building.py": "how an index is built while others write; read beside the migrations",
    "jobmaster_agents/limit_publisher.py": "a periodic task of its own, as schedule_publisher.py",
    "jobmaster/testing/memory/limits.py": "one part of the master in memory, as its neighbours",
    "jobmaster/testing/memory/clock.py": "a clock is looked for under its name, beside jobmaster/clock.py",
    "jobmaster/master/changes.py": "one part of the master, as its neighbours",
    "jobmaster/master/leadership.py": "one part of the master, as its neighbours",
    "jobmaster/testing/memory/events.py": "one part of the master in memory, as its neighbours",
    "jobmaster/master/stores.py": "one part of the master, as its neighbours",
    "jobmaster/testing/memory/bulk_operations.py": "one part of the master in memory, as its neighbours",
    "jobmaster/testing/memory/workflows.py": "one part of the master in memory, as its neighbours",
    "jobmaster/pipeline/table_frame.py": "programs import it, as history_frame.py",
}
"""Small modules with one importer beside them, and why they are modules."""

MANY_PARAMETERS = {
    "jobmaster/pipeline/jobs/map_functions.py:spark_map": "a decorator: each is an option of the application, by its name",
    "agents/jobmaster_agents/buckets/anti_entropy.py:AntiEntropy.__init__": "wired once, in agent.py",
    "agents/jobmaster_agents/fetch/claimer.py:Claimer.__init__": "a bucket's claimer is known to every part of a job's way",
    "agents/jobmaster_agents/fetch/due_fetcher.py:DueFetcher.__init__": "wired once, in bucket_worker.py",
    "agents/jobmaster_agents/outcomes/in_flight.py:InFlightRows.__init__": "wired once, in bucket_worker.py",
    "agents/jobmaster_agents/outcomes/writer.py:OutcomeWriter.__init__": "wired once, in bucket_worker.py",
    "agents/jobmaster_agents/leader/leader.py:Leader.__init__": "wired once, in agent.py, by name",
    "agents/jobmaster_agents/execute/dispatch.py:Dispatcher.__init__": "wired once; one argument per way of running",
    "agents/jobmaster_agents/execute/executor.py:Executor.__init__": "wired once, in bucket_worker.py",
    "agents/jobmaster_agents/lease/heartbeat.py:Heartbeat.__init__": "wired once; its callbacks are its only way out",
    "agents/jobmaster_agents/execute/process_pool/pool.py:ProcessPool.__init__": "wired once, by name",
    "agents/jobmaster_agents/agent.py:AgentRuntime.__init__": "made once, in run_agent.py, of all that an agent is made of",
    "agents/jobmaster_agents/rescue/rescuer.py:StoreRescuer.__init__": "wired once, in agent.py",
    "agents/jobmaster_agents/lease/store_lease.py:StoreLease.__init__": "wired once, in agent.py, like the heartbeat",
    "agents/jobmaster_agents/bucket_worker.py:BucketWorker.__init__": "wired once, in agent.py",
}

CATCHES_EVERYTHING = {
    "jobmaster/client/locks/held_lock.py": "a lock whose renewal failed for any reason ends, and its body is cancelled",
    "jobmaster/pydantic_models.py": "validators and serializers of models are foreign code",
    "agents/jobmaster_agents/execute/transactional/runner.py": "a handler is foreign code, and so is its commit",
    "agents/jobmaster_agents/execute/dispatch.py": "a pool that cannot start is not the job's fault; bad arguments are",
    "agents/jobmaster_agents/execute/executor.py": "a handler is foreign code; SystemExit must not end its neighbours",
    "agents/jobmaster_agents/execute/process_pool/worker_main.py": "foreign code is imported and run here",
    "agents/jobmaster_agents/execute/process_pool/fork_server_main.py": "foreign code is imported here",
    "agents/jobmaster_agents/execute/process_pool/worker_process.py": "a failure of any kind to start is answered for",
    "agents/jobmaster_agents/lease/heartbeat.py": "a figure that cannot be read must not cost the lease",
    "agents/jobmaster_agents/periodic_task.py": "a periodic task that fails is logged, counted and tried again",
    "agents/jobmaster_agents/execute/thread_pool.py": "a handler is foreign code",
    "agents/jobmaster_agents/outcomes/outcome_builder.py": "a result is foreign code while it is being encoded",
    "jobmaster/handlers/decisions.py": "what a handler gives as a reason or a pause is foreign code",
    "jobmaster/handlers/flow/limits.py": "the key of a limit is a handler's own code",
    "jobmaster/handlers/flow/ordering.py": "the ordering key is a handler's own code",
    "jobmaster/handlers/retry_rules.py": "a retry policy is a handler's own code",
    "jobmaster/agentstore/wake_wait.py": "handed on to the callers that wait for the shared connection",
    "jobmaster/cli/completion.py": "a shell that completes a word prints values and no errors",
    "jobmaster/cli/failures.py": "the last stop: one line and an exit code instead of a traceback",
    "jobmaster/client/bulk.py": "handed on to the caller through the report",
    "jobmaster/client/coalescer.py": "handed on to every caller of the batch",
    "jobmaster/codec.py": "an exception's own __str__ is foreign code",
    "jobmaster/pipeline/jobs/map_chunks.py": "Spark raises errors of Java, of Arrow and of Python; a dead Spark raises again",
    "jobmaster/pipeline/datasource/copy_to_arrow.py": "handed on to the thread that reads",
    "agents/jobmaster_agents/execute/log_records.py": "as every handler of logging: a line fails no job",
    "jobmaster/handlers/loading.py": "importing handlers runs foreign code; it becomes a ConfigError",
    "jobmaster/pipeline/jobs/driver_program.py": "a Spark job is foreign code; its error goes to the handler",
    "jobmaster/pipeline/jobs/map_application.py": "whatever ends an application is raised by each of its jobs",
    "jobmaster/pipeline/jobs/map_rows.py": "the function is foreign code; its error goes to the jobs that it had",
}

OPEN_KEYWORDS = {
    "jobmaster/pipeline/jobs/functions.py:run": "the arguments of the function that it stands for",
    "jobmaster/pipeline/jobs/map_functions.py:run": "the arguments of a job, which are checked",
    "jobmaster/handlers/call.py:call": "the arguments of the called function",
    "jobmaster/django/admin.py:change_view": "the signature of Django's admin",
    "jobmaster/django/backend.py:check": "the signature of Django's backends",
    "jobmaster/django/checks.py:check_masters": "Django's checks may get further words",
    "jobmaster/django/execution.py:run": "the arguments of the task's function",
    "jobmaster/django/management/commands/jobmaster.py:handle": "Django's commands may get further options",
    "jobmaster/testing/context.py:job_context": "the fields of a job's context, which are checked",
    "jobmaster/testing/jobs.py:all_submitted": "arguments of the handler, which are checked",
    "jobmaster/testing/jobs.py:assert_submitted": "arguments of the handler, which are checked",
    "jobmaster/testing/jobs.py:refute_submitted": "arguments of the handler, which are checked",
    "agents/jobmaster_agents/execute/call_spans.py:traced": "the arguments of the traced call",
    "agents/jobmaster_agents/execute/process_pool/worker_cleanup.py:submit": "the signature of concurrent.futures.Executor",
    "jobmaster/handlers/current.py:submit": "the signature of concurrent.futures.Executor",
    "jobmaster/web/api/records.py:record_of": "fields of the record, whose type checks them",
    "jobmaster/cli/commands/jobs/submit.py:submit": "click hands over one word per option",
    "jobmaster/cli/commands/events.py:events": "click hands over one word per option",
    "jobmaster/cli/commands/jobs/bulk.py:retry": "click hands over one word per option",
    "jobmaster/cli/commands/jobs/bulk.py:cancel": "click hands over one word per option",
    "jobmaster/cli/commands/jobs/bulk.py:reschedule": "click hands over one word per option",
    "jobmaster/cli/commands/jobs/bulk.py:delete": "click hands over one word per option",
    "jobmaster/cli/commands/jobs/job.py:list_": "click hands over one word per option",
    "jobmaster/cli/commands/jobs/job.py:count": "click hands over one word per option",
    "jobmaster/cli/commands/jobs/job_reports.py:failures": "click hands over one word per option",
    "jobmaster/cli/commands/pipeline/pipeline.py:plan": "click hands over one word per option",
    "jobmaster/cli/commands/pipeline/step.py:command": "click hands over one word per option",
    "jobmaster/web/pages/site.py:page": "the names of a template",
    "jobmaster/cli/commands/pipeline/pipeline.py:submit": "click hands over one word per option",
}

FOREIGN_TEXT = {
    "jobmaster/django/admin.py": "SET LOCAL around the queries of a page, which Django makes",
    "jobmaster/agentstore/library.py": "the first line of a function library, which names its engine",
    "jobmaster/master/history/export.py": "the columns that are wanted, around a statement",
    "jobmaster/master/schema/migrate.py": "SET LOCAL inside the transaction of a migration",
    "jobmaster/master/schema/roles.py": "GRANT and REVOKE, made from what the statements need",
    "jobmaster/master/schema/migrations.py": "SET LOCAL at the head of the script for people",
}
"""Modules that hold SQL or Lua in a string, and why."""

WORDS_ALLOWED = {
    "tests/repository/code/tidy.py": "the patterns",
    "tests/repository/code/test_tidy.py": "a sample of each",
    "CHANGELOG.md": "earlier names",
    "master_schema/migrations/0001_cluster.sql": "a migration is never changed",
    "jobmaster/embedded/directory.py": "sockets need a short path, which only these well-known directories give",
}

MASTER_HEADER = ("out", "move", "fence", "index")
AUDIT_HEADER = ("in", "out", "index")
LUA_HEADER = ("keys", "args", "answers", "effects", "why")


@cache
def tracked() -> list[Path] | None:
    return tree_of.tracked(ROOT)


def files(*folders: str, suffix: str = "") -> list[Path]:
    """Files of the folders, including new ones; without folders, all files of the project."""
    found = (None if folders else tracked()) or tree_of.walked(
        [ROOT / folder for folder in folders] or [ROOT], tree_of.ignored(ROOT)
    )
    return [path for path in found if path.name.endswith(suffix)]


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def over(check: Callable[[str, ast.Module], list[str]], *folders: str) -> list[str]:
    of_product = set(files(*PRODUCT, suffix=".py"))
    return [
        found
        for path in files(*folders, suffix=".py")
        for found in check(place(path), (tidy.syntax_tree if path in of_product else ast.parse)(source(path)))
    ]


def apart_from(found: list[str], listed: dict[str, str]) -> list[str]:
    """Findings that are not listed, and entries of the list without a finding."""
    idle = [f"{key}: listed for nothing" for key in listed if not any(item.startswith(f"{key}:") for item in found)]
    return [item for item in found if not any(item.startswith(f"{key}:") for key in listed)] + idle


def none_of(found: list[str]) -> None:
    assert not found, "\n" + "\n".join(found)


# ---------------------------------------------------------------- the tree


def test_functions_are_short() -> None:
    found = [item for path in files(*CODE, suffix=".py") for item in tidy.long_functions(place(path), source(path))]
    none_of(apart_from(found, LONG))


@pytest.mark.filterwarnings("default:.* lines, more than")
def test_long_modules_are_named_in_a_warning() -> None:
    for path in files(*CODE, suffix=".py"):
        for found in tidy.long_modules(place(path), source(path)):
            warnings.warn(found, stacklevel=1)


def test_packages_and_folders_of_tests_have_few_modules_side_by_side() -> None:
    none_of(tidy.crowded_packages(map(place, files("jobmaster", "agents", "tests", "benchmarks", suffix=".py"))))


def test_small_modules_with_one_importer_have_a_reason() -> None:
    modules = {place(path).removeprefix("agents/"): source(path) for path in files("jobmaster", "agents", suffix=".py")}
    none_of(apart_from(tidy.fragments(modules), FRAGMENTS))


def test_functions_take_few_parameters() -> None:
    none_of(apart_from(over(tidy.too_many_parameters, *PRODUCT), MANY_PARAMETERS))


def test_everything_is_caught_only_where_it_must_be() -> None:
    none_of(apart_from(over(tidy.catches_everything, *PRODUCT), CATCHES_EVERYTHING))


def test_no_module_keeps_state() -> None:
    none_of(over(tidy.mutated_globals, *PRODUCT))


def test_keywords_are_listed() -> None:
    none_of(apart_from(over(tidy.open_keywords, *PRODUCT), OPEN_KEYWORDS))


def test_ids_are_made_and_clocks_are_read_in_one_module() -> None:
    assert {item.split(":")[0] for item in over(tidy.ids_made, *PRODUCT)} == {"jobmaster/clock.py"}
    assert [
        item for path in files(*PRODUCT, suffix=".py") for item in tidy.clock_ban_lifted(place(path), source(path))
    ] == []


def test_sql_and_lua_stand_in_files_of_their_own() -> None:
    none_of(apart_from(over(tidy.foreign_text, *PRODUCT), FOREIGN_TEXT))


def test_statements_and_functions_have_their_header() -> None:
    folders = {"jobmaster/master": MASTER_HEADER, "jobmaster/audit": AUDIT_HEADER, "master_schema/migrations": ()}
    found = [
        item
        for folder, wanted in folders.items()
        for path in files(folder, suffix=".sql")
        for item in tidy.header_lacks(place(path), source(path), wanted if path not in MIGRATIONS else ())
        if path not in MIGRATIONS or not item.endswith("no line with its name")
    ]
    found += [
        item
        for path in files("jobmaster/agentstore", suffix=".lua")
        for item in tidy.header_lacks(place(path), source(path), LUA_HEADER)
    ]
    none_of(found)
    where = {path.parent for path in files(suffix=".sql")} - {(ROOT / "master_schema" / "migrations")}
    assert {place(folder).split("/sql")[0] for folder in where} <= {"jobmaster/master", "jobmaster/audit"}


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [int(path.name[:4]) for path in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))
    for path in MIGRATIONS:
        number, name = path.stem.split("_", 1)
        assert source(path).startswith(f"-- {number} {name.replace('_', ' ')}: ")


def test_no_file_name_is_meaningless() -> None:
    assert [item for path in files() for item in tidy.banned_name(path.relative_to(ROOT))] == []


def test_no_unwelcome_word() -> None:
    found = []
    for path in files():
        try:
            text = source(path)
        except UnicodeDecodeError:
            continue  # no text
        found += tidy.unwelcome_words(place(path), text)
    none_of(apart_from(found, WORDS_ALLOWED))


# ---------------------------------------------------------------- the rules themselves


def parsed(check: Callable[[str, ast.Module], list[str]]) -> Callable[[str], list[str]]:
    return lambda text: check("sample.py", ast.parse(text))


def long_functions(text: str) -> list[str]:
    return tidy.long_functions("sample.py", text)


LONG_FUNCTION = "def f():\n" + "    pass\n" * 60
RULES: dict[str, tuple[Callable[[str], list[str]], str, str]] = {
    "module length": (lambda text: tidy.long_modules("sample.py", text), "x = 1\n" * 601, "x = 1\n" * 600),
    "package": (
        lambda text: tidy.crowded_packages(text.split()),
        " ".join(f"a/m{number}.py" for number in range(21)),
        " ".join(["a/__init__.py", *(f"a/m{number}.py" for number in range(20))]),
    ),
    "function length": (long_functions, LONG_FUNCTION, LONG_FUNCTION[: -len("    pass\n")]),
    "function length at the end of a class": (
        long_functions,
        "class A:\n" + textwrap.indent(LONG_FUNCTION, "    ") + "x = 1\n",
        "class A:\n    def f(self): ...\n\n    def g(\n        self,\n    ) -> None: ...\n" + "x = 1\n" * 60,
    ),
    "function length with a text and inner functions": (
        long_functions,
        'def f():\n    x = """\ndef g(): ...\n"""\n    def h(): ...\n' + "    pass\n" * 56,
        'def f():\n    x = """\ndef g(): ...\n"""\n    def h(): ...\n' + "    pass\n" * 55,
    ),
    "fragment": (lambda text: tidy.fragments({"a/b.py": text, "a/c.py": "from a.b import x"}), "x = 1\n", "x = 1\n" * 60),
    "fragment of a neighbour": (
        lambda text: tidy.fragments({"a/b.py": "x = 1\n", "a/c.py": "from a import b", "d/e.py": text}),
        "import a",
        "import a.b",
    ),
    "parameters": (
        parsed(tidy.too_many_parameters),
        "class A:\n    def f(self, a, b, c, d, /, e, *, f, g, h, i): ...",
        "class A:\n    def f(self, a, b, c, d, /, e, *, f, g, h): ...",
    ),
    "exception": (
        parsed(tidy.catches_everything),
        "try: ...\nexcept (ValueError, Exception): pass",
        "try: ...\nexcept ValueError: pass",
    ),
    "bare except": (parsed(tidy.catches_everything), "try: ...\nexcept: pass", "try: ...\nexcept BaseException:\n    raise"),
    "wrapped": (
        parsed(tidy.catches_everything),
        "try: ...\nexcept Exception as e:\n    raise ValueError from e",
        "try: ...\nexcept OSError as e:\n    raise ValueError from e",
    ),
    "global container": (
        parsed(tidy.mutated_globals),
        "seen: list[int] = []\ndef f(): seen.append(1)",
        "KNOWN = [1]\ndef f(): return KNOWN[0]",
    ),
    "global item": (parsed(tidy.mutated_globals), "a = dict()\ndef f(): a[1] = 2", "a = {}\ndef f():\n    a = {1}"),
    "global word": (parsed(tidy.mutated_globals), "n = 0\ndef f():\n    global n\n    n = 1", "def f():\n    n = 1"),
    "keywords": (
        parsed(tidy.open_keywords),
        "def f(**kwargs: int): ...",
        "def f(**options: Unpack[Options]): ...",
    ),
    "ids": (parsed(tidy.ids_made), "import uuid\nuuid.uuid4()", "import uuid\nuuid.UUID(bytes=b)"),
    "id library": (parsed(tidy.ids_made), "import uuid_utils", "import uuid"),
    "clock": (
        lambda text: tidy.clock_ban_lifted("sample.py", text),
        "import time  # noqa: S1, TID251",
        "import time  # noqa: S1",
    ),
    "sql": (parsed(tidy.foreign_text), 'x = "SELECT id FROM job"', '"""SELECT id FROM job"""'),
    "sql in parts": (parsed(tidy.foreign_text), 'x = f"UPDATE {t} j SET a = 1"\ny = "DELETE FROM job"', 'x = "SET of ids"'),
    "lua": (parsed(tidy.foreign_text), "x = b\"return redis.call('GET', KEYS[1])\"", 'x = "redis.asyncio"'),
    "header": (
        lambda text: tidy.header_lacks("sql/peek.sql", text, ("out", "move")),
        "-- peek: look\n-- out: id\nSELECT 1",
        "-- peek: look\n-- out: id\n-- move: nothing\nSELECT 1",
    ),
    "header name": (
        lambda text: tidy.header_lacks("sql/peek.sql", text, ()),
        "-- pick: look\nSELECT 1",
        "-- peek: look\nSELECT 1",
    ),
    "unfinished": (lambda text: tidy.unwelcome_words("a", text), "# TODO: later", "# to do"),
    "machine path": (lambda text: tidy.unwelcome_words("a", text), "cd /root/x", "see docs/root/x"),
    "scratch path": (lambda text: tidy.unwelcome_words("a", text), "'/tmp/x'", "${TMP}/x"),
    "registry": (lambda text: tidy.unwelcome_words("a", text), "https://pypi.org/", "a package index"),
    "court": (lambda text: tidy.unwelcome_words("a", text), "the Verdict of a check", "the status of a check"),
    "name": (lambda text: tidy.banned_name(Path(text)), "jobmaster/util" "s.py", "jobmaster/clock.py"),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_can_fail(rule: str) -> None:
    check, bad, good = RULES[rule]
    assert check(bad) != []
    assert check(good) == []


def test_an_exception_that_excuses_nothing_is_found() -> None:
    assert apart_from(["a.py:3: wrong"], {"a.py": "because"}) == []
    assert apart_from(["a.py:3: wrong"], {"b.py": "because"}) == ["a.py:3: wrong", "b.py: listed for nothing"]
