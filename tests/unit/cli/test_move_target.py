"""The target of ``jobmaster migrate``."""

from __future__ import annotations

from jobmaster.cli.commands.cluster.cluster import target_settings
from jobmaster.settings.model import ClusterSettings, MasterSettings


def test_the_server_of_a_target_dsn_is_not_sent_the_password_of_the_source() -> None:
    source = ClusterSettings(master=MasterSettings(dsn="postgresql://old/jobs", password_command="secret-of-old"))
    target = target_settings(source, "postgresql://new/jobs")
    assert (target.master.dsn, target.master.password_command) == ("postgresql://new/jobs", None)
