"""Every statement of the master, and every command to a store, belongs to a role."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

from jobmaster.agentstore.acl import COMMANDS, FUNCTIONS, StoreUser
from jobmaster.agentstore.library import sources
from jobmaster.master.driver.statements import names
from jobmaster.master.schema.privileges import functions
from jobmaster.master.schema.roles import DEFINERS, STATEMENTS, Role, statements_of

_OF_THE_OWNER = ("archive/", "cluster/", "schema/")
_WRITER = (
    "master/history/bulk_insert.py", "pipeline/datasource/writer.py", "pipeline/datasource/write_options.py",
    "pipeline/steps/submit.py", "pipeline/steps/finished_files.py", "pipeline/steps/write_progress.py",
    "pipeline/steps/backfills.py", "cli/operator_log.py",
)  # fmt: skip
"""What a write of Spark and `jobmaster pipeline submit` run."""
_OF_READERS = {"export/archived"}
"""Of `jobmaster pipeline replay`, which reads the jobs that it submits again."""
_NAMED = re.compile(r'"(\w+/\w+)"')
_SENT = re.compile(r'pack\(\s*b"([A-Z]+)"(?:, b"([A-Z]+)")?')


def test_every_statement_has_a_role_and_every_pattern_a_statement() -> None:
    of_roles = {name for role in STATEMENTS for name in statements_of(role)}
    missing = [name for name in names() if name not in of_roles and not name.startswith(_OF_THE_OWNER)]
    assert missing == [], "which roles run it? list it in jobmaster/master/schema/roles.py"
    patterns = {pattern for role in STATEMENTS.values() for pattern in role}
    assert [pattern for pattern in sorted(patterns) if not any(fnmatchcase(name, pattern) for name in names())] == []
    assert functions().keys() >= DEFINERS


def test_a_producer_may_run_every_statement_that_the_writer_of_spark_names() -> None:
    named = {name for path in _WRITER for name in _NAMED.findall((Path("jobmaster") / path).read_text())} & set(names())
    assert named > {"pipeline/begin_write", "pipeline/finish_files", "maintenance/note_operations"}
    missing = named - _OF_READERS - set(statements_of(Role.PRODUCER))
    assert missing == set(), "list it in jobmaster/master/schema/roles.py: the role of producers submits files, too"


def test_every_command_that_is_sent_to_a_store_and_every_function_has_a_user() -> None:
    sent = {
        "|".join(filter(None, match)).lower()
        for path in Path("jobmaster/agentstore").glob("*.py")
        for match in _SENT.findall(path.read_text())
    }
    allowed = {command for commands in COMMANDS.values() for command in commands}
    # Clusters that are thrown away leave with DEL, which agents have inside their functions.
    assert sent - allowed == {"fcall", "ping", "del"}
    assert {name for user in StoreUser for name in FUNCTIONS[user]} == sources().keys() - {"prelude"}
