"""The line of ``jobmaster doctor`` about the handlers of agents; two applications may have one cluster id by mistake."""

from __future__ import annotations

import json
from typing import Any

from jobmaster import Handlers
from jobmaster.doctor.checks import _handlers, _Waiting
from jobmaster.doctor.findings import CheckStatus
from jobmaster.rules.unserved_cause import UnservedCause
from jobmaster.settings.agent_differences import declared
from tests.repository.made_texts import ROOT

shop, billing = Handlers(), Handlers()


@shop.job(name="send")
def send(to: str) -> None: ...


@billing.job(name="send")
def send_invoice(number: int, count: int = 1) -> None: ...


@billing.job(name="pay")
def pay(number: int) -> None: ...


def agent(name: str, handlers: Handlers, *, old: bool = False) -> dict[str, Any]:
    published = {} if old else declared(handler.spec for handler in handlers)
    return {
        "name": name, "pid": 7, "host": f"{name}.example", "mode": "full", "handlers": handlers.names(),
        "settings": json.dumps({"leases.lease": 10.0, **published}),
    }  # fmt: skip


def test_two_applications_that_declare_one_handler_differently_are_told_to_part() -> None:
    found = _handlers([agent("web", shop), agent("bills", billing)], [])
    assert found.status is CheckStatus.WARN
    assert found.detail == (
        "handler send takes other arguments on bills (pid 7 on bills.example) than on web (pid 7 on web.example)"
    )
    assert found.fix is not None
    assert "`cluster: NAME`" in found.fix
    assert "jobmaster db migrate" in found.fix
    page = (ROOT / "docs" / "not-starting.md").read_text(encoding="utf-8")
    assert found.fix.replace("`", "") in page.replace("`", "")


def test_a_deploy_that_is_half_done_shows_both_what_differs_and_which_agents_lack_the_handler_of_due_jobs() -> None:
    cause = UnservedCause(lane="default", priority=3, handler="pay", known=True, active=True, frozen=False)
    found = _handlers([agent("web", shop), agent("bills", billing)], [_Waiting(cause, 5, 0)])
    assert found.status is CheckStatus.WARN
    assert "web (pid 7 on web.example): without pay; handler send takes other arguments on bills" in found.detail
    assert found.fix.startswith("start all agents of a lane with the same code")
    assert "`cluster: NAME`" in found.fix


def test_different_handlers_of_different_names_are_fine() -> None:
    found = _handlers([agent("web", shop), agent("web2", shop)], [])
    assert (found.status, found.detail) == (CheckStatus.OK, "1 handlers, the same on every agent")
    only_pay = Handlers()
    only_pay.job(name="pay")(pay)
    assert _handlers([agent("web", shop), agent("bills", only_pay)], []).status is CheckStatus.OK


def test_an_agent_of_an_older_program_is_not_compared() -> None:
    assert _handlers([agent("web", shop), agent("bills", billing, old=True)], []).status is CheckStatus.OK
