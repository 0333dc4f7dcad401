"""The value of a secret argument reaches its handler, and nothing that people look at."""

from __future__ import annotations

import httpx
import pytest

from jobmaster.handlers import call
from jobmaster.rules.access import Role
from jobmaster.settings.model import Web, WebToken
from jobmaster.web.app import create_app
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.system.handlers.secret_jobs import charge, charge_isolated, handlers

pytestmark = pytest.mark.slow

TOKEN, CARD = 'tok-"4711"-geheim', {"number": "4111-1111"}
MARKS = ("4711", "geheim", "4111-1111")


async def test_secret_values_reach_the_handler_and_no_view_log_error_or_command(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.secret_jobs"]
    agent = await deployment.start_agent()
    async with await open_cluster(deployment.settings, handlers) as cluster:
        good = await cluster.submit(call(charge, 7, TOKEN, CARD))
        assert await good.result(timeout=PATIENCE_SECONDS) == len(TOKEN)
        bad = await cluster.submit(call(charge, -1, TOKEN, CARD))
        isolated = await cluster.submit(call(charge_isolated, TOKEN))
        for receipt in (bad, isolated):
            assert await receipt.wait(timeout=PATIENCE_SECONDS) == "FAILED"

            async def logged(receipt: object = receipt) -> bool:
                return bool(await cluster.logs(receipt))  # type: ignore[arg-type]

            await eventually(logged, 60, lambda: "lines of the run")
        view = await cluster.get(bad)
        assert view.arguments["token"] == TOKEN, "programs read what was submitted"
        assert view.error is not None
        assert "***" in view.error.message
        shown = await cluster.redacted(view)
        assert shown.arguments == {"order": -1, "token": "***", "card": "***"}
        seen = [repr(view), str(view.failed_because), view.error.traceback, shown.arguments_json.decode()]
        seen += [line.text for receipt in (good, bad, isolated) for line in await cluster.logs(receipt)]
        app = create_app(cluster, Web(tokens={"admin": WebToken(token="t" * 20, role=Role.ADMIN)}))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://127.0.0.1",
            headers={"Authorization": f"Bearer {'t' * 20}"},
        ) as browser:
            for path in (f"/jobs/{bad.id}?whole=1", f"/api/v1/jobs/{bad.id}"):
                page = await browser.get(path)
                assert page.status_code == 200, page.text
                assert "***" in page.text
                seen.append(page.text)
        await cluster.schedules.put("nightly", "0 3 * * *", call(charge, 1, TOKEN, CARD))
    # A command has no handler of its own: what agents have published says which arguments are secret.
    for words in (
        ["job", "show", str(bad.id)], ["job", "show", str(good.id), "-o", "json"], ["job", "list"],
        ["job", "timeline", str(bad.id)],
        ["job", "logs", str(bad.id)], ["job", "wait", str(good.id)], ["schedule", "show", "nightly"], ["events"],
    ):  # fmt: skip
        done = deployment.run(*words)
        assert done.returncode == 0 or words[1] == "wait", f"{words}: {done.stderr}"
        seen.append(done.stdout + done.stderr)
    assert '"***"' in seen[-7]
    assert await agent.terminate() == 0
    seen.append(agent.log.read_text())
    assert "the card is {'number': '***'}" in seen[-1]
    assert "KeyError: '***'" in seen[-1]
    assert [(mark, text) for mark in MARKS for text in seen if mark in text] == []
