"""A real Prometheus scrapes a real agent, and evaluates every alert rule and every query of the dashboards."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from jobmaster.client.cluster import Cluster
from jobmaster.monitoring.alerts import ALERTS
from tests.repository.operation.test_monitoring import ROOT, expressions
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import free_port
from tests.support.waiting import eventually
from tests.system.jobs import noop
from tests.system.operation.test_metrics import port_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("long_lease")]

RULES = ROOT / "config" / "prometheus" / "alerts.yml"
VARIABLES = {"$cluster": "shop", "$lane": ".*", "$priority": ".*", "$handler": ".*", "$__rate_interval": "1m"}
"""What Grafana puts into the queries of the dashboards."""


@asynccontextmanager
async def prometheus(program: str, directory: Path, metrics_port: int) -> AsyncIterator[str]:
    """A server that scrapes one agent as the cluster ``shop``; the address of its API."""
    target = {"job_name": "shop", "static_configs": [{"targets": [f"127.0.0.1:{metrics_port}"]}]}
    told = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [target],
    }
    config = directory / "prometheus.yml"
    config.write_text(yaml.safe_dump(told))
    port = free_port()
    with (directory / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        process.terminate()
        await process.wait()


async def asked(api: str, path: str, **query: str) -> dict[str, Any]:
    """The data of an answer; an error where there is none."""
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        try:
            answer = await client.get(f"{api}/{path}", params=query)
        except httpx.TransportError as error:
            return {"error": str(error)}
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:  # it listens before it answers
        return {"error": answer.text}
    told: dict[str, Any] = answer.json()
    return told["data"] if told["status"] == "success" else told


async def test_a_prometheus_evaluates_every_rule_and_query_over_a_real_agent(
    deployment: Deployment, cluster: Cluster, tmp_path: Path
) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no prometheus: apt-get install prometheus")
    deployment.document["observability"]["metrics_port"] = 0
    agent = await deployment.start_agent()
    await cluster.wait_all([await cluster.submit(noop) for _ in range(5)])
    async with prometheus(program, tmp_path, await port_of(agent)) as api:

        async def rules() -> list[dict[str, Any]]:
            groups = (await asked(api, "rules")).get("groups", [])
            found = [rule for group in groups for rule in group["rules"]]
            return found if found and all(rule["health"] != "unknown" for rule in found) else []

        async def scraped() -> bool:
            found = await asked(api, "query", query="count_over_time(jobmaster_build_info[1m]) > 2")
            return bool(found.get("result"))

        await eventually(scraped, what="some scrapes")
        found = await eventually(rules, what="every rule to be evaluated")
        assert {rule["name"]: (rule["health"], rule.get("lastError")) for rule in found} == {
            alert.name: ("ok", None) for alert in ALERTS
        }
        firing = await asked(api, "query", query='ALERTS{alertstate="firing"}')
        assert firing["result"] == []
        refused = {}
        for expression in expressions():
            query = expression
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            if query.startswith("label_values("):
                continue  # a function of Grafana
            answer = await asked(api, "query", query=query)
            if "error" in answer:
                refused[query] = answer["error"]
        assert refused == {}
