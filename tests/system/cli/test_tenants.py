"""``jobmaster tenants`` and ``jobmaster unique``, and what a submit on the command line says of them."""

from __future__ import annotations

import pytest

from tests.system.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_a_tenant_with_a_waiting_job_is_listed(dev: Terminal) -> None:
    bad = dev.call("job", "submit", "add", "one=2", "other=40", "--tenant", "a b", "-o", "json")
    assert (bad.code, bad.error["code"]) == (2, "input_error")
    assert "is not the name of a tenant" in bad.error["message"]
    assert dev.call("pause", "handler", "add", "--reason", "test").code == 0
    try:
        job = dev.call(
            "job", "submit", "add", "one=2", "other=40", "--tenant", "acme", "--durability", "master", "-o", "json"
        )
        assert job.code == 0, job.err
        (line,) = dev.call("tenants", "-o", "json").json
        assert (line["name"], line["lane"], line["weight"]) == ("acme", "default", 1)
        assert line["held"] + line["in_flight"] == 1
    finally:
        assert dev.call("resume", "handler", "add").code == 0
    assert dev.call("job", "show", job.json["id"], "-o", "json").json["tenant"] == "acme"


def test_a_unique_key_is_listed_and_released(dev: Terminal) -> None:
    submit = ("job", "submit", "add", "one=2", "other=40", "--unique", "2 and 40", "--after", "1h", "-o", "json")
    job = dev.call(*submit)
    assert job.code == 0, job.err
    (line,) = dev.call("unique", "list", "add", "-o", "json").json
    assert (line["key"], line["job"], line["state"]) == ("2 and 40", job.json["id"], "HELD")
    assert "the job has ended" in dev.call("unique", "list").out
    assert dev.call("unique", "release", "add", "2 and 40").code == 0
    assert dev.call("unique", "list", "add", "-o", "json").json == []
    gone = dev.call("unique", "release", "add", "2 and 40", "-o", "json")
    assert (gone.code, gone.error["code"]) == (3, "not_found")
    assert dev.call(*submit).json["id"] != job.json["id"]
