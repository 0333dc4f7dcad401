"""Locate places of several tenants, and show what the API has seen: ``python locate.py acme=40 globex=10``."""

import json
import os
import sys
import time
from urllib.request import urlopen

from tasks import handlers, locate

from jobmaster import call, connect_sync

API = os.environ.get("GEOCODER", "http://127.0.0.1:8123")

wanted = {tenant: int(number) for tenant, _, number in (word.partition("=") for word in sys.argv[1:])}
began = time.monotonic()
with connect_sync(handlers=handlers) as cluster:
    jobs = [
        cluster.submit(call(locate, API, tenant, f"place-{number}"))
        for tenant, count in wanted.items()
        for number in range(count)
    ]
    for job in jobs:
        job.result(timeout=300)
with urlopen(f"{API}/counts") as answer:
    counts = json.load(answer)
print(f"{len(jobs)} places in {time.monotonic() - began:.1f} s")
print(f"{'tenant':10} requests  at once  in one second")
for tenant in wanted:
    seen = counts[tenant]
    print(f"{tenant:10} {seen['requests']:8} {seen['most_at_once']:8} {seen['busiest_second']:14}")
