"""JobMaster: a background-job cluster that is as fast as its stores allow and never loses a job.

This package re-exports the public names only; importing it loads no database driver.
"""
