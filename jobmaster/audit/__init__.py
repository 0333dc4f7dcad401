"""The auditor counts violations of the invariants in master and stores. It changes nothing.

``jobmaster doctor`` and the demo run it on a live cluster; tests of crashes run it after each crash.
"""

from jobmaster.audit.auditor import AuditReport, AuditScope, Evidence, audit
from jobmaster.audit.invariants import INVARIANTS, Invariant

__all__ = ["INVARIANTS", "AuditReport", "AuditScope", "Evidence", "Invariant", "audit"]
