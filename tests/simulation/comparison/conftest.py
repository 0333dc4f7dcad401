"""A migrated database for the comparison with the simulated master."""

from __future__ import annotations

from tests.integration.postgres.conftest import migrated, rescuer, world

__all__ = ["migrated", "rescuer", "world"]
