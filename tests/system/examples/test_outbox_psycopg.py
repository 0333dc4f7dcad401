"""``examples/outbox_psycopg``: an order and its mail are one transaction of psycopg."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest

from jobmaster.embedded import read_status
from tests.support.patience import PATIENCE_SECONDS
from tests.system.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_two_lamps_are_sold_and_the_third_order_leaves_no_mail(example: Terminal) -> None:
    status = read_status(example.data_dir)
    assert status is not None
    dsn = status.postgres.address

    def order(email: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "shop.py", email],
            cwd=example.folder,
            env={**example.environment, "DATABASE_URL": dsn},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    for number, name in enumerate(("ada", "bob"), 1):
        ran = order(f"{name}@example.org")
        assert (ran.stdout, ran.stderr) == (f"order {number} is confirmed to {name}@example.org\n", "")
    ran = order("eve@example.org")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", "sold out: there is no order and no mail\n")
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM lamp_order").fetchone() == (2,)
    jobs = example.call("job", "list", "-o", "json").json
    assert len(jobs["jobs"] if isinstance(jobs, dict) else jobs) == 2
