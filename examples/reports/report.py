"""Print the newest report, or make one now: ``python report.py``, ``python report.py --now``."""

import sys

from tasks import handlers

from jobmaster import Conflict, connect_sync

with connect_sync(handlers=handlers) as cluster:
    if "--now" in sys.argv[1:]:
        try:
            print(cluster.schedules.run("reports.nightly").result(timeout=60))
        except Conflict as error:
            sys.exit(str(error))
    else:
        fires = cluster.schedules.fires("reports.nightly")
        made = next((fire.job_id for fire in fires if fire.outcome == "fired"), None)
        if made is None:
            (upcoming,) = cluster.schedules.next("reports.nightly", 1)
            sys.exit(f"there is no report yet; the first is due at {upcoming:%Y-%m-%d %H:%M} UTC")
        print(cluster.result(made, timeout=60))
