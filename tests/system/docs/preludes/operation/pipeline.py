"""What the page about the data pipeline takes for granted: Spark with its Java, the master's address, two failed jobs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jobmaster import Cluster, Fail, Handlers, call
from jobmaster.pipeline.spark.session import SessionOptions, open_session
from jobmaster.server_addresses import addresses

handlers = Handlers()
_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": os.path.abspath("warehouse"),
    "spark.driver.memory": "1g",
}
_sessions: list[Any] = []
_counts: list[Any] = []


@handlers.job(name="images.resize")
async def resize(path: str) -> int:
    if path == "broken.png":
        raise Fail("no image")
    return len(path)


def run_sql(text: str) -> None:
    """Each statement by the session."""
    for statement in text.split(";"):
        if statement.strip():
            _counts[:] = _sessions[0].sql(statement).collect()


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    os.environ["MASTER_DSN"] = addresses(cluster.settings).dsn
    _sessions.append(open_session(SessionOptions("local[2]", _SETTINGS, "page"), os.environ))
    incoming = Path("incoming")
    incoming.mkdir()
    (incoming / "a.json").write_text(
        "".join(f'{{"id": {n}, "name": "stream-{n}.{"png" if n < 2 else "gif"}"}}\n' for n in range(5))
    )
    for _ in range(2):
        receipt = await cluster.submit(call(resize, "broken.png"))
        await receipt.wait(timeout=60)


async def after(names: dict[str, Any]) -> None:
    """The statements have found the failed jobs, and each row that was written is a job."""
    assert [tuple(row) for row in _counts] == [("images.resize", 2)]
    assert names["jobs"].columns == ["id", "handler", "state", "waited_us", "ran_us"]
    assert names["jobs"].count() == 0, "none since 2030"
    assert names["recorded"].isStreaming
    source = _sessions[0].read.format("jobmaster").option("dsnEnv", "MASTER_DSN").option("handlers", "images.resize")
    arguments = [row["args"] for row in source.option("columns", "args").load().collect()]
    assert len(arguments) == 1002 + 5 + 2
    assert len(set(arguments)) == 1001 + 5 + 2, "the failed jobs have the same path"
    _sessions[0].stop()
