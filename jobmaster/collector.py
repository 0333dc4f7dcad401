"""The garbage collector of a process that handles many jobs.

A full collection looks at every object of the process: 20 to 50 ms where a program has imported some libraries. CPython
begins one when as many objects have outlived the younger generations as are a quarter of the old ones. A job on its way is
eight objects, and a thousand jobs that wait for one answer outlive a young generation together. So a process that submits
50,000 jobs a second stood still for each full collection several times a second.
"""

import gc

THRESHOLDS = (20_000, 20, 50)
"""At the thresholds of CPython the collector took an eighth of the time of no-op jobs in an agent, and a quarter of that of
a producer."""


def tune_collector() -> None:
    """Tune the garbage collector of this process for many jobs a second: call it once, after the imports.

    What is loaded by now is taken out of later collections (``gc.freeze``), and these come less often. Agents do it by
    themselves; a producer calls it if it submits thousands of jobs a second, or if no submit may wait for a full collection.
    It is for the whole process, so a library must not call it. Cycles of objects, once they are garbage, stay in memory for
    longer; those of objects that exist now stay for ever.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
