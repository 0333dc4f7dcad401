"""Each check of the doctor has a runbook with its four parts. (Those of alerts are in ``test_monitoring``.)"""

from __future__ import annotations

import re
from pathlib import Path

from jobmaster.doctor.examination import WHY

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "runbooks.md"
PARTS = ["Symptom", "Cause", "Look at", "Mend"]


def runbooks() -> dict[str, str]:
    """Check -> its section."""
    parts = re.split(r"^## (.+)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_check_has_a_runbook() -> None:
    assert runbooks().keys() == WHY.keys()


def test_each_finding_that_the_doctor_makes_is_a_known_check() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "jobmaster" / "doctor").glob("*.py"))
    made = set(re.findall(r"""Finding\(\s*"([\w.]+)",""", code))
    assert len(made) > 15
    assert made <= WHY.keys()


def test_each_runbook_has_its_parts_in_order() -> None:
    wrong = [
        check
        for check, text in runbooks().items()
        if re.findall(r"^\*\*([\w ]+)\.\*\* \S", text, re.MULTILINE) != PARTS
    ]
    assert wrong == []
