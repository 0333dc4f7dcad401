"""Views for people and functions that users call keep the names that the last release had."""

from __future__ import annotations

from tests.integration.postgres.fixture import MasterFixture
from tests.repository.public_names import FUNCTIONS, VIEWS, differences, record, sql_names
from tests.repository.release.test_public_names import MEND


async def test_no_public_name_in_sql_is_lost(db: MasterFixture) -> None:
    now = await sql_names(db.sql)
    assert [str(each) for each in differences("sql", record()["sql"], now)] == [], MEND
    assert {name.split()[1].split(".")[0].split("(")[0] for name in now} == {*VIEWS, *FUNCTIONS}
