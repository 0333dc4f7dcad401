"""Order something and print what became of each step: ``python order.py A7 lamp 19900``."""

import sys

from tasks import handlers, order_flow

from jobmaster import connect_sync

order, item, cents = sys.argv[1], sys.argv[2], int(sys.argv[3])
with connect_sync(handlers=handlers) as cluster:
    started = cluster.workflows.start("order", order_flow(order, item, cents))
    ended = cluster.workflows.wait(started, timeout=60)
    print(f"{ended.state}: jobmaster workflow show {ended.id}")
    for step in ended.steps:
        result = cluster.result(step.job) if step.job is not None and step.state == "SUCCEEDED" else "-"
        print(f"{step.name:24} {step.state:10} {result}")
