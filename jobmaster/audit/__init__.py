"""The auditor: are the promises kept? It reads master and stores, changes nothing, and counts every violation.

``jobmaster doctor`` and the demo run it on a live cluster; tests of crashes run it after each.
"""

from jobmaster.audit.auditor import AuditReport, AuditScope, Evidence, audit
from jobmaster.audit.invariants import INVARIANTS, Invariant

__all__ = ["INVARIANTS", "AuditReport", "AuditScope", "Evidence", "Invariant", "audit"]
