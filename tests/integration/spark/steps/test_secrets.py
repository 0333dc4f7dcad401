"""No password of the master is in plans, logs, event logs, checkpoints or pages of Spark, in the session of a user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobmaster.model.errors import InputError
from tests.integration.spark.steps.conftest import seeded_cluster
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[4]
MARKER = "marker-of-the-password"
ROWS = 200


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_no_password_is_shown_by_a_session_of_a_user(
    migrated_dsn: str, store_url: str, cluster_name: str, tmp_path: Path
) -> None:
    """A read, a view, a write, two streams and the archive; Spark's settings are its defaults."""
    pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
    seeded = seeded_cluster(migrated_dsn, store_url, cluster_name, tmp_path)
    seeded.fill_days(3, rows=ROWS)
    schema, out = seeded.settings.schema_name(), tmp_path / "out"
    out.mkdir()
    env = {"SPARK_LOCAL_IP": "127.0.0.1", "SECRET_URL": with_password(migrated_dsn)}
    words = [sys.executable, "-m", "tests.integration.spark.steps.secrets_program"]
    done = subprocess.run(
        [*words, schema, cluster_name, store_url, str(out)],
        cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"archived {ROWS}" in done.stdout
    (out / "output").write_text(done.stdout + done.stderr)
    everything = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert any(name.startswith("events/") and b"lately" in text for name, text in everything.items())
    assert any(name.startswith("pages/") and b"lately" in text for name, text in everything.items())
    assert [name for name, text in everything.items() if MARKER.encode() in text] == []


def test_a_dsn_with_a_password_is_refused_and_a_url_is_not() -> None:
    from jobmaster.pipeline.datasource.cluster_ref import address_of, cluster_ref_of

    secret = f"postgresql://u:{MARKER}@h/d"
    with pytest.raises(InputError, match="option dsn has a password") as refused:
        cluster_ref_of({"dsn": secret})
    assert MARKER not in str(refused.value)
    assert cluster_ref_of({"url": secret, "cluster": "c"}).dsn == secret
    assert MARKER not in repr(cluster_ref_of({"url": secret, "cluster": "c"}))
    assert address_of({"dsn": "postgresql://u@h/d"}) == "postgresql://u@h/d"
    with pytest.raises(InputError, match="both url and dsn"):
        address_of({"url": secret, "dsn": "postgresql://h/d"})


def with_password(dsn: str) -> str:
    """The same address; the server does not ask for the password."""
    before, _, after = dsn.partition("@")
    assert ":" not in before.partition("://")[2], "the tests' server has no password of its own"
    return f"{before}:{MARKER}@{after}"
