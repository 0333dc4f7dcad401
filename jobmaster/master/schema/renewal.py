"""Schemas of tests: migrated once, and as good as new for each test.

To empty the tables that a test has filled costs a hundredth of a migration. Only for schemas that are thrown away: nothing
protects their rows.
"""

from __future__ import annotations

from jobmaster.master.driver import errors
from jobmaster.master.driver.connection import ConnectionFactory
from jobmaster.master.driver.statements import sql
from jobmaster.settings.model import MasterSettings

_APPLICATION_NAME = "jobmaster-testing"


async def keep_pristine(*, dsn: str, schema: str, settings: MasterSettings) -> None:
    """Keep what a migrated schema holds, for ``renew``. Once for each database.

    Raises:
        Unavailable, Refused: the server cannot be reached, or does not allow it.
    """
    await _execute(dsn, schema, settings, "schema/keep_pristine")


async def renew(*, dsn: str, schema: str, cluster: str, settings: MasterSettings) -> None:
    """End all other sessions of the database, empty the schema, and give it to a cluster.

    Raises:
        Unavailable, Refused: the server cannot be reached, or does not allow it.
    """
    await _execute(dsn, schema, settings, "schema/end_sessions", "schema/renew")
    await _execute(dsn, schema, settings, "schema/rename_cluster", cluster=cluster)


async def _execute(
    dsn: str, schema: str, settings: MasterSettings, *statements: str, cluster: str | None = None
) -> None:
    connection = await ConnectionFactory(dsn, schema, settings, _APPLICATION_NAME).open(plan_once=False)
    try:
        for name in statements:
            await connection.execute(sql(name), *(() if cluster is None else (cluster,)))
    except errors.DRIVER_ERRORS as error:
        raise errors.calling(error, "the renewal of a schema", writes=True) from error
    finally:
        connection.terminate()
