"""A migrated database for the comparison with the simulated master."""

from __future__ import annotations

from tests.integration.postgres.conftest import db, migrated, rescuer, shared

__all__ = ["db", "migrated", "rescuer", "shared"]
