"""The alert rules: an expression, and what the person on call needs to know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import yaml

from jobmaster.monitoring.expressions import CLUSTER, PROCESS, each, grown, name_of, quantile, rate, top

PAGE = "https://github.com/jobmaster-cluster/jobmaster-cluster/blob/main/docs/alerts.md"
"""Where the sections are that ``runbook_url`` points to."""
FAILED_RUNS = '{outcome=~"failed|retried|timed_out"}'
TIMED_OUT = '{outcome="timed_out"}'
MISSED = '{outcome="missed"}'
ASYNC = '{kind="async"}'
NOT_OK = '{result!="ok"}'


class Severity(StrEnum):
    """How soon a person has to act."""

    PAGE = "page"
    """Now: jobs are lost, or do not run."""
    TICKET = "ticket"
    """Within a day."""


class Alert(NamedTuple):
    """One rule."""

    name: str
    expression: str
    for_: str
    """How long the expression holds before the alert fires; ``0m``: at once."""
    severity: Severity
    summary: str
    means: str
    matters: str
    action: str
    """What to do, in Markdown."""

    @property
    def runbook(self) -> str:
        """The section of this alert."""
        return f"{PAGE}#{self.name.lower()}"


_PAGE, _TICKET = Severity.PAGE, Severity.TICKET

ALERTS: tuple[Alert, ...] = (
    # ------------------------------------------------------------ is there a cluster
    Alert(
        "JobMasterMetricsAbsent",
        f"absent({name_of('build_info')})",
        "5m",
        _PAGE,
        "Prometheus gets no metrics of any agent",
        "No process that Prometheus scrapes is an agent. Either no agent runs, or none can be reached.",
        "Every other alert here is silent while there are no metrics, also when no job runs.",
        "`jobmaster status` shows whether agents are alive. If they are, check `observability.metrics_port` "
        "and `metrics_host`, the scrape configuration and the network; otherwise start agents and read the "
        "log of the supervisor.",
    ),
    Alert(
        "JobMasterNoLeader",
        f"{top('leading')} == 0",
        "2m",
        _PAGE,
        "No agent leads the cluster {{ $labels.job }}",
        "For two minutes no scraped agent has held the leader's lease.",
        "Jobs in stores go on. Jobs that wait in the master for their time do not start, dead agents are "
        "not found, schedules do not fire, and no partition is created ahead.",
        "`jobmaster status` names the leader; it may be an agent that is not scraped. Agents lead with "
        "`mode: full` or `leader` and a `weight` above 0. If there are such agents, look for "
        "`leader_superseded` and `periodic_task_failed` with `task: leader` in their log: mostly the master "
        "does not answer.",
    ),
    Alert(
        "JobMasterAgentDied",
        f"{grown('place_deaths', PROCESS)} > 0",
        "0m",
        _TICKET,
        "An agent process of {{ $labels.instance }} has died",
        "A process did not leave in order, and its supervisor has started another one.",
        "Its jobs were rescued and run again where that is allowed. A handler that kills its process does so again.",
        "The log of the supervisor has the exit code or the signal. After SIGKILL look for the kernel's "
        "out-of-memory killer. `jobmaster rescue list --since 1h` shows what was rescued; jobs with many "
        "rescues (`jobmaster job show`) name the handler.",
    ),
    Alert(
        "JobMasterCrashLoop",
        f"{top('place_deaths_in_a_row', PROCESS)} >= 3",
        "1m",
        _PAGE,
        "Agents in the place of {{ $labels.instance }} die one after the other",
        "Three or more processes in a row have died in this place soon after their start.",
        "The place does no work, and each death costs a rescue.",
        "Read the first error after `agent_started` in the log. If a job is the cause, it runs alone before "
        "its last rescue and then ends as FAILED with the reason `agent_lost`; otherwise it is the "
        "configuration or the machine.",
    ),
    # ------------------------------------------------------------ is work done
    Alert(
        "JobMasterOldestDueHigh",
        f"{top('oldest_due_seconds', 'lane', 'priority')} > 300",
        "5m",
        _TICKET,
        "Jobs of {{ $labels.lane }}/{{ $labels.priority }} are {{ $value | humanizeDuration }} late",
        "The oldest job of this lane and priority that could run has waited for more than five minutes.",
        "Users wait. Change the bound to what you can bear; low priorities may have a higher one.",
        "Compare `jobmaster_slots` with `jobmaster_jobs_running`: all slots are taken when there is too "
        "much work (start more agents, or raise `agents.<name>.slots`). Free slots mean that something "
        "keeps the jobs back: a pause (`jobmaster pauses`), a full limit, an open circuit breaker, a "
        "handler that no agent has (JobMasterHandlerUnserved).",
    ),
    Alert(
        "JobMasterBacklogNotCounted",
        f"{top('leading')} == 1 unless on ({CLUSTER}) {top('backlog_jobs')} and on ({CLUSTER}) {top('buckets_owned')} > 0",
        "5m",
        _TICKET,
        "The leader of {{ $labels.job }} does not count what waits",
        "An agent leads and shows no `jobmaster_backlog_jobs`, although agents own buckets.",
        "JobMasterOldestDueHigh is silent meanwhile, and an autoscaler gets no figures.",
        "Look for `periodic_task_failed` with `task: backlog` in the leader's log: the statement is refused "
        "or takes longer than `master.statement_timeout`.",
    ),
    Alert(
        "JobMasterLaneUnserved",
        f"{top('groups_unserved')} > 0",
        "5m",
        _PAGE,
        "{{ $value }} lanes and priorities of {{ $labels.job }} have due jobs and no bucket",
        "Jobs are due in a lane and priority for which no agent has a bucket.",
        "These jobs wait until an agent serves them.",
        "`lane_unserved` in the log of the leader names lane and priority. Add the lane to "
        "`agents.<name>.lanes`, start an agent that has it, or correct the producer that uses it.",
    ),
    Alert(
        "JobMasterHandlerUnserved",
        f"{top('handlers_unserved')} > 0",
        "5m",
        _TICKET,
        "{{ $value }} handlers with overdue jobs are in no agent of {{ $labels.job }}",
        "Overdue jobs have a handler that no agent with a bucket of their lane and priority has.",
        "They wait, and are looked at once an hour only.",
        "`jobmaster doctor` and the event `handler_unserved` name the handlers and the lack: deploy the "
        "code, start agents that provide what the handler needs, or cancel the jobs.",
    ),
    Alert(
        "JobMasterHandlerFailing",
        f"{rate('handler_runs', 'handler', where=FAILED_RUNS, over='10m')} / "
        f"{rate('handler_runs', 'handler', over='10m')} > 0.5 "
        f"and {grown('handler_runs', 'handler', over='10m')} > 10",
        "10m",
        _TICKET,
        "More than half of the runs of {{ $labels.handler }} fail",
        "For ten minutes more than half of this handler's attempts have failed or timed out.",
        "Jobs are tried again, take slots for nothing, and end as FAILED when their attempts are used up.",
        "`jobmaster_attempts_failed_total` has the reasons, `jobmaster job list --state FAILED --handler "
        "NAME` the jobs with their errors. `jobmaster pause handler NAME` keeps the rest until the cause is "
        "gone; `jobmaster job retry` runs failed jobs again.",
    ),
    Alert(
        "JobMasterHandlerTimingOut",
        f"{rate('handler_runs', 'handler', where=TIMED_OUT, over='10m')} / "
        f"{rate('handler_runs', 'handler', over='10m')} > 0.1",
        "10m",
        _TICKET,
        "More than a tenth of the runs of {{ $labels.handler }} time out",
        "For ten minutes more than a tenth of this handler's attempts were stopped at their time-out.",
        "What they call hangs or is slow. Handlers in threads that ignore their time-out take their threads with them.",
        "Look at what the handler calls. A circuit breaker on the handler stops the attempts while a resource is away.",
    ),
    Alert(
        "JobMasterSlotsTaken",
        f"{each('jobs_running', PROCESS)} / {each('slots', PROCESS, where=ASYNC)} > 0.95",
        "30m",
        _TICKET,
        "All slots of {{ $labels.instance }} are taken",
        "For half an hour this process has run as many jobs as it may.",
        "Jobs wait for slots although the machine may have more to give.",
        "If processor and memory are free, raise `agents.<name>.slots` and `max_running`; otherwise start more agents.",
    ),
    Alert(
        "JobMasterHandlersStuck",
        f"{each('threads_stuck', PROCESS)} + {each('handlers_stuck', PROCESS)} > 0",
        "10m",
        _TICKET,
        "{{ $value }} runs of {{ $labels.instance }} were given up and do not end",
        "Handlers were stopped at their time-out or by a cancellation, and go on.",
        "A stuck thread is lost until the process is replaced. When all are stuck the process is recycled.",
        "`handler_given_up` in the log names handler and job. Give the calls in the handler time-outs of their own.",
    ),
    Alert(
        "JobMasterFiresMissed",
        f"{grown('fires', where=MISSED, over='1h')} > 0",
        "0m",
        _TICKET,
        "Schedules of {{ $labels.job }} have missed fires",
        "Nominal times of schedules passed while nothing could decide them, and the misfire rule left them out.",
        "Jobs that were expected at these times do not exist.",
        "`jobmaster schedule show NAME` shows them. The cause is an outage of the master or a time without "
        "a leader. `jobmaster schedule run NAME` makes up for one.",
    ),
    # ------------------------------------------------------------ servers
    Alert(
        "JobMasterSuspended",
        f"{top('suspended', PROCESS)} == 1",
        "1m",
        _PAGE,
        "{{ $labels.instance }} works without the master",
        "The master has not answered this agent for half its lease; its store confirms its buckets.",
        "Jobs go on from the stores and outcomes are kept there, up to a bound. Nothing that needs a row starts.",
        "Bring PostgreSQL back. If other agents are not suspended, the network of this one is at fault.",
    ),
    Alert(
        "JobMasterLeaseRenewalsFailing",
        f"{rate('renewals', PROCESS, where=NOT_OK)} > 0.1",
        "2m",
        _PAGE,
        "Lease renewals of {{ $labels.instance }} fail",
        "For two minutes renewals of this agent's lease have failed, came too late or were withheld.",
        "An agent without its lease starts nothing, and ends itself before the lease is over.",
        "`jobmaster_lease_renewal_seconds` shows a slow master, `jobmaster_loop_stalls_total` a blocked "
        "event loop, `jobmaster_store_beats_total` a store that does not answer.",
    ),
    Alert(
        "JobMasterMasterSlow",
        f"{quantile(0.99, 'outcome_write_seconds')} > 5",
        "10m",
        _TICKET,
        "Outcomes of {{ $labels.job }} take {{ $value | humanizeDuration }} to be written",
        "One of a hundred batches of outcomes takes more than five seconds, all tries counted.",
        "Outcomes wait in memory, and are lost with their agent (the jobs run again).",
        "Look at PostgreSQL: disk, checkpoints, locks, long transactions, a synchronous standby that is "
        "slow. Statements carry their name as a comment in `pg_stat_activity`.",
    ),
    Alert(
        "JobMasterOutcomesKept",
        f"{each('outcomes_kept')} > 0 unless on ({CLUSTER}) {top('suspended')} == 1",
        "15m",
        _TICKET,
        "{{ $value }} outcomes of {{ $labels.job }} wait in stores although the master answers",
        "Outcomes were kept in buckets while the master was away, and have not been written since.",
        "Their jobs look unfinished, and a store that is lost now loses these outcomes.",
        "Look for `periodic_task_failed` and refusals in the log of the owners; `jobmaster bucket list` "
        "shows the buckets with `kept`.",
    ),
    Alert(
        "JobMasterStoreSilent",
        f"{top('stores_silent', PROCESS)} > 0",
        "2m",
        _PAGE,
        "{{ $value }} agent stores do not answer {{ $labels.instance }}",
        "A store of the configuration has not answered this agent for two minutes.",
        "Agents with buckets in it renew no lease and end; new jobs go to other stores or to the master; what lies in "
        "its buckets waits.",
        "`jobmaster store check` and the event `store_silent` name it. Bring it back with its data: jobs "
        "without a row lie there alone.",
    ),
    Alert(
        "JobMasterClockWrong",
        f"max by ({CLUSTER}, {PROCESS}) (abs({name_of('clock_ahead_seconds')})) > 1",
        "5m",
        _TICKET,
        "The clock of {{ $labels.instance }} is {{ $value | humanizeDuration }} off",
        "The wall clock of this machine differs from the master's by more than a second.",
        "Leases do not depend on it. Ids and due times that are made there do, and a store refuses ids too "
        "far from its clock.",
        "Repair the synchronisation of time (NTP) on this machine, or on the master if all machines differ.",
    ),
    # ------------------------------------------------------------ safety
    Alert(
        "JobMasterJobsAtRisk",
        f"{grown('jobs_at_risk')} > 0",
        "0m",
        _PAGE,
        "A store of {{ $labels.job }} has lost {{ $value }} jobs that had no row",
        "A store was emptied, replaced or set back, and jobs that were in it alone are gone.",
        "They were acknowledged at the level `store` or `volatile`, and do not run.",
        "`bucket_forgotten` in the log names bucket and reason, the table `store_loss` the time span: "
        'submit again what producers sent then. Use `durability="master"` or `store_fsync` for jobs that '
        "may not be lost.",
    ),
    Alert(
        "JobMasterRowsWithoutMemory",
        f"{grown('rows_without_memory')} > 0",
        "0m",
        _PAGE,
        "{{ $value }} rows of {{ $labels.job }} were PROCESSING and no agent ran them",
        "Rows say that a job runs, and their agent does not have it. They were given back.",
        "A failover has forgotten commits, or JobMaster has a defect. Jobs may have run twice.",
        "Was there a failover to an asynchronous standby? Otherwise report it with `jobmaster job timeline "
        "JOB` and `jobmaster doctor`.",
    ),
    Alert(
        "JobMasterEntriesQuarantined",
        f"{grown('jobs_quarantined')} + {grown('entries_put_aside')} > 0",
        "0m",
        _TICKET,
        "{{ $value }} entries of {{ $labels.job }} cannot become jobs",
        "Entries of buckets cannot be decoded or stored, and were put into the quarantine.",
        "They are jobs that never ran.",
        "The section on the quarantine of the page on operations tells how to look at them and to submit them again.",
    ),
    Alert(
        "JobMasterJobsConflicting",
        f"{grown('jobs_conflicting')} > 0",
        "0m",
        _TICKET,
        "One id came with two payloads in {{ $labels.job }}",
        "A second copy of an id was seen with other arguments.",
        "A producer uses one `job_id` for two jobs: one of them does not run.",
        "`job_conflict` in the log has the id: correct the producer.",
    ),
    Alert(
        "JobMasterBucketsLost",
        f"{grown('buckets_lost')} > 0",
        "0m",
        _TICKET,
        "Agents of {{ $labels.job }} have lost {{ $value }} buckets",
        "A living agent was told by its store or by the master that a bucket is not its own any more.",
        "Its jobs were given back or rescued. It happens after an outage of a store, and should not happen otherwise.",
        "`bucket_forgotten` has the reason. Without an outage: does another cluster use the store, does it "
        "evict keys, are leases too short for pauses of the machine?",
    ),
    Alert(
        "JobMasterRescueStuck",
        f"{grown('drains_postponed', over='10m')} > 3",
        "5m",
        _PAGE,
        "Lost buckets of {{ $labels.job }} cannot be evacuated",
        "Rescues are put off again and again, because a store or the master does not answer.",
        "The jobs in these buckets do not run until then.",
        "`bucket_drain_postponed` names bucket and error, `jobmaster rescue list` the state. Bring the server back.",
    ),
    Alert(
        "JobMasterJobsGivenUp",
        f"{grown('jobs_given_up')} + {grown('jobs_too_slow')} + {grown('jobs_abandoned')} > 0",
        "0m",
        _TICKET,
        "{{ $value }} jobs of {{ $labels.job }} ended without a result of their own",
        "Jobs ended as FAILED because they were rescued or reassigned too often, or were started at most "
        "once and stopped.",
        "What they have done is unknown.",
        "`jobmaster job list --state FAILED` shows them with the reasons `agent_lost`, `too_slow`, `abandoned`.",
    ),
    Alert(
        "JobMasterJobsNotSealed",
        f"{grown('jobs_not_sealed')} > 0",
        "0m",
        _PAGE,
        "{{ $value }} jobs of {{ $labels.job }} had no seal and were not run",
        "Jobs of handlers in `encryption.require` had plain arguments, and ended as FAILED without a run.",
        "A program that has no key submits such jobs, or another program writes to a server of the cluster.",
        "`jobmaster job list --error jobmaster.encryption.NotSealed` shows them. Look for a producer without "
        "`encryption.active`, a schedule, a workflow or SQL that names the handler; otherwise find out who can write to "
        "the master and the stores.",
    ),
    # ------------------------------------------------------------ the processes
    Alert(
        "JobMasterPeriodicTaskFailing",
        f"{grown('periodic_task_failures', PROCESS, 'task', over='10m')} > 5",
        "5m",
        _TICKET,
        "The task {{ $labels.task }} of {{ $labels.instance }} fails",
        "A periodic task has failed more than five times in ten minutes.",
        "What it does is not done: the name of the task is that of its module.",
        "`periodic_task_failed` in the log has the error.",
    ),
    Alert(
        "JobMasterLoopStalled",
        f"{grown('loop_stalls', PROCESS)} > 0",
        "0m",
        _TICKET,
        "The event loop of {{ $labels.instance }} was blocked",
        "A renewal was withheld, because the process made no progress.",
        "A handler that blocks the loop stops all other jobs of its process, and costs it the lease when it goes on.",
        "`loop_stalled` in the log names the handler and the line. Make it a `thread` or a `process` handler.",
    ),
)


def rules_yaml() -> str:
    """The rules as a file that Prometheus loads."""
    rules = [_rule(alert) for alert in ALERTS]
    document = {"groups": [{"name": "jobmaster", "rules": rules}]}
    head = "# Made by: python -m jobmaster.monitoring.generated_texts. What each alert means is in docs/alerts.md.\n"
    return head + yaml.safe_dump(document, sort_keys=False, width=1000, allow_unicode=False)


def _rule(alert: Alert) -> dict[str, Any]:
    held = {} if alert.for_ == "0m" else {"for": alert.for_}
    return {
        "alert": alert.name,
        "expr": alert.expression,
        **held,
        "labels": {"severity": alert.severity.value},
        "annotations": {"summary": alert.summary, "description": alert.means, "runbook_url": alert.runbook},
    }


def alerts_page() -> str:
    """The page with a section for each alert."""
    return "\n".join(_lines())


def _plain(summary: str) -> str:
    """A summary without the templates that Prometheus fills in."""
    return re.sub(r"\{\{ \$value.*?\}\}", "N", re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"`\1`", summary))


def _lines() -> Iterator[str]:
    yield """\
<!-- made by: python -m jobmaster.monitoring.generated_texts -->
# Alerts

`config/prometheus/alerts.yml` has the rules for Prometheus, and each section here is what its `runbook_url` points to.
`config/grafana` has three dashboards: the cluster, its handlers, and what its safety depends on. Both are made from the table
of metrics. `python -m jobmaster.monitoring.generated_texts DIRECTORY` writes them anywhere; copy the rules and change bounds
there.

One scrape job of Prometheus is one cluster: the label `job` is its name in all expressions. `severity: page` means that jobs
are lost or do not run, `severity: ticket` that a person has to look at it within a day.

```yaml
scrape_configs:
  - job_name: orders            # one job for each cluster
    scrape_interval: 15s
    static_configs:
      - targets: ["agents-1:9464", "agents-1:9465"]
rule_files: [alerts.yml]
```
"""
    for alert in ALERTS:
        held = "at once" if alert.for_ == "0m" else f"after {alert.for_}"
        yield f"## {alert.name}\n\n{_plain(alert.summary)} ({alert.severity.value}, {held}).\n"
        yield f"```promql\n{alert.expression}\n```\n"
        yield f"**What it means.** {alert.means}\n\n**Why it matters.** {alert.matters}\n\n**What to do.** {alert.action}\n"
