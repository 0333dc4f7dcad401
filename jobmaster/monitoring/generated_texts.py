"""Writes the alert rules, their page and the dashboards.

``python -m jobmaster.monitoring.generated_texts`` writes them anew in the source tree, ``... DIRECTORY`` anywhere; a test
compares what is kept with what would be written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jobmaster.monitoring.alerts import alerts_page, rules_yaml
from jobmaster.monitoring.dashboards import DASHBOARDS, dashboard_json


def made_texts(root: Path) -> dict[Path, str]:
    """Path under ``root`` -> what should stand there."""
    grafana = root / "config" / "grafana"
    return {
        root / "config" / "prometheus" / "alerts.yml": rules_yaml(),
        root / "docs" / "alerts.md": alerts_page(),
        **{grafana / f"{each.name}.json": dashboard_json(each) for each in DASHBOARDS},
    }


def main() -> None:
    """Write every text under the directory that is given, or under the current one."""
    for path, text in made_texts(Path(*sys.argv[1:2])).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
