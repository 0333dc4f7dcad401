"""The application ``jobmaster.django``: its command, its checks and its pages in the admin."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

from jobmaster.django.checks import check_masters


class JobMasterConfig(AppConfig):
    """``INSTALLED_APPS = [..., "jobmaster.django"]``."""

    name = "jobmaster.django"
    label = "jobmaster"
    verbose_name = "JobMaster"

    def ready(self) -> None:
        """Register the check that connects to a database, which runs for ``check --database`` alone."""
        checks.register(check_masters, checks.Tags.database)
