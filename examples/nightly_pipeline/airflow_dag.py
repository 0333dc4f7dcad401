"""The same with Apache Airflow: each step is a task that runs the command line, whose exit codes are what Airflow acts on.

0: done. 1: a check found something, and a repetition finds it again. 2: the command is wrong. 69: a server is away.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

PIPELINE = "jobmaster pipeline {step} --master 'local[2]' -o json"
# `skip_on_exit_code` ends a task as skipped; 1 of the audit shall fail it at once, so it is not among the retries.
RETRIES = {"retries": 3, "retry_delay": timedelta(minutes=5), "retry_exponential_backoff": True}

with DAG(
    "jobmaster_nightly",
    schedule="0 2 * * *",
    start_date=datetime(2030, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=RETRIES,
) as dag:
    archive = BashOperator(task_id="archive", bash_command=PIPELINE.format(step="archive --older-than 30d"))
    rollup = BashOperator(task_id="rollup", bash_command=PIPELINE.format(step="rollup"))
    audit = BashOperator(task_id="audit", bash_command=PIPELINE.format(step="audit"), retries=0)
    # The last line of the output, one JSON object with the figures, is what the next tasks find (`do_xcom_push`).
    submit = BashOperator(
        task_id="submit_orders",
        bash_command=PIPELINE.format(step="submit /data/orders --format parquet --handler orders.take --key order"),
    )
    archive >> rollup >> audit
    rollup >> submit
