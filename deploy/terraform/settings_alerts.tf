# Each alert is for something that an operator can fix. docs/operations.md describes how,
# under the alert's name, and the notification has the same text.

locals {
  run_requests  = "run_googleapis_com:request_count{monitored_resource=\"cloud_run_revision\",service_name=\"${var.name}-%s\",%s}"
  queue_matcher = "monitored_resource=\"cloud_tasks_queue\",queue_id=\"${local.names.queue}\""
  queue_depth   = "cloudtasks_googleapis_com:queue_depth{${local.queue_matcher}}"
  attempts      = "sum(increase(cloudtasks_googleapis_com:queue_task_attempt_count{${local.queue_matcher}}[%dm]))"
  queue_delays  = "cloudtasks_googleapis_com:queue_task_attempt_delays_bucket{${local.queue_matcher}}"

  # How long a queue may send nothing: RETRY_MAX, a quarter more, and a quarter of an hour.
  retry_max_minutes = sum(concat([0], [for part in regexall("([0-9.]+)(h|ms|m|s)", lookup(var.worker_env, "RETRY_MAX", "10m")) : part[0] * { h = 60, m = 1, s = 1 / 60, ms = 0 }[part[1]]]))
  quiet_minutes     = max(30, ceil(1.25 * local.retry_max_minutes) + 15)

  # A log metric may belong to several kinds of resource; PromQL needs one of them.
  logs = "monitored_resource=\"cloud_run_revision\""

  # By the name that Cloud Monitoring shows; heading is the section of the runbook.
  # Each comparison of a query is a line of its own.
  alerts = { for heading, alert in local.all_alerts : replace(heading, "Taskguard", title(var.name)) => merge(alert, {
    heading = heading, query = replace(alert.query, "/ (and|or|unless) ([(sh])/", "\n$1 $2")
    })
  if local.doclock || heading != "Taskguard: the document lock fails" }

  # Service levels: events that miss an objective, all events, and the percentage of good
  # ones. An alert fires when the last hour and its last five minutes have used up what the
  # objective allows 14.4 times too fast (two days of a month's worth in an hour), or six
  # hours and their last 30 minutes 6 times. A few events alone do not count.
  objectives = {
    starts  = { missed = "${local.logged.late_starts}{${local.logs}}", all = "${local.logged.time_to_start_ms}_count{${local.logs}}", percent = var.start_percent }
    answers = { missed = "${local.logged.deliveries}{${local.logs},status=~\"404|409|5.*\"}", all = "${local.logged.deliveries}{${local.logs},status=~\"2.*|404|409|5.*\"}", percent = var.answer_percent }
  }
  burns = { for name, o in local.objectives : name => join(" or ", [for b in [["14.4", "1h", "5m"], ["6", "6h", "30m"]] :
    "(sum(increase(${o.missed}[${b[1]}])) > 5 and ${join(" and ", [for window in slice(b, 1, 3) :
      "sum(increase(${o.missed}[${window}])) > ${b[0]} * (100 - ${o.percent}) / 100 * sum(increase(${o.all}[${window}]))"
    ])})"
  ]) }

  all_alerts = {
    "Taskguard: analyses start late" = {
      severity = "ERROR"
      means    = "too many analyses start later than the objective"
      lasting  = "0s"
      query    = local.burns.starts
    }

    "Taskguard: deliveries are answered with errors" = {
      severity = "ERROR"
      means    = "too many deliveries are answered 404, 409 or 5xx"
      lasting  = "0s"
      query    = local.burns.answers
    }

    "Taskguard: an analysis is not finished" = {
      severity = "WARNING"
      means    = "the oldest unfinished analysis is over ${var.oldest_minutes} minutes old"
      lasting  = "600s"
      query    = "sum(increase(${local.logged.oldest_ms}_sum{${local.logs}}[10m])) > ${var.oldest_minutes * 60000} * sum(increase(${local.logged.oldest_ms}_count{${local.logs}}[10m]))"
    }

    "Taskguard: tasks wait" = {
      severity = "WARNING"
      means    = "half of the deliveries are over 10 minutes late"
      lasting  = "600s"
      query    = "histogram_quantile(0.5, sum by (le) (rate(${local.queue_delays}[10m]))) > 600000"
    }

    "Taskguard: the backlog grows" = {
      severity = "WARNING"
      means    = "the backlog is large and grows"
      lasting  = "1800s"
      query    = "sum(${local.queue_depth}) > ${var.backlog_tasks} and sum(${local.queue_depth}) > sum(${local.queue_depth} offset 30m)"
    }

    # All tasks may wait for RETRY_MAX.
    "Taskguard: tasks are not sent" = {
      severity = "CRITICAL"
      means    = "there are tasks, and none is sent"
      lasting  = "900s"
      query    = "sum(min_over_time(${local.queue_depth}[${local.quiet_minutes}m])) > 0 unless ${format(local.attempts, local.quiet_minutes)} > 0"
    }

    "Taskguard: tasks do not arrive" = {
      severity = "CRITICAL"
      means    = "tasks are sent, and no delivery is logged"
      lasting  = "900s"
      query    = "${format(local.attempts, 30)} > 0 unless sum(increase(${local.logged.deliveries}{${local.logs}}[30m])) > 0"
    }

    "Taskguard: Firestore is out of reach" = {
      severity = "CRITICAL"
      means    = "deliveries are answered 503 unavailable"
      lasting  = "300s"
      query    = "sum(increase(${local.logged.deliveries}{${local.logs},outcome=\"unavailable\"}[10m])) > 5"
    }

    "Taskguard: analyses fail" = {
      severity = "ERROR"
      means    = "over a tenth ends FAILED"
      lasting  = "600s"
      query    = "sum(increase(${local.logged.deliveries}{${local.logs},outcome=\"failed\"}[30m])) > 5 and sum(increase(${local.logged.deliveries}{${local.logs},outcome=\"failed\"}[30m])) > 0.1 * sum(increase(${local.logged.deliveries}{${local.logs},outcome=~\"ready|failed\"}[30m]))"
    }

    "Taskguard: attempts are exhausted" = {
      severity = "ERROR"
      means    = "an analysis was given up: its attempts or its run time are exhausted"
      lasting  = "0s"
      query    = "sum(increase(${local.logged.exhausted}{${local.logs}}[15m])) > 0"
    }

    "Taskguard: locks are lost" = {
      severity = "WARNING"
      means    = "runs lose their lock"
      lasting  = "0s"
      query    = "sum(increase(${local.logged.losses}{${local.logs},lost!=\"cancelled\"}[30m])) > 3"
    }

    # Analyses that wait in the queue are another alert's. Where recovery cannot ask the
    # queue, they count as stuck: if the queue delivers later than a TTL, this alert does
    # not fire. Recovery finds an analysis that still does not run once a TTL.
    "Taskguard: analyses are stuck" = {
      severity = "ERROR"
      means    = "for half an hour recovery has found orphaned analyses"
      lasting  = "1800s"
      query    = "sum(increase(${local.logged.stuck}_count{${local.logs}}[${ceil(var.lock_ttl_seconds / 60) + 3}m])) > 0 unless histogram_quantile(0.5, sum by (le) (rate(${local.queue_delays}[10m]))) > ${var.lock_ttl_seconds * 1000}"
    }

    # A line that is counted late must not start the 15 minutes again, so one or two calls
    # count as silence, of ten. It is also silence if there has never been a call: 15
    # minutes are enough for the job's first calls to be counted.
    "Taskguard: recovery has stopped" = {
      severity = "ERROR"
      means    = "fewer than three recovery calls have succeeded in ten minutes"
      lasting  = "900s"
      query    = "(sum(increase(${local.logged.recoveries}{${local.logs},outcome=\"recovered\"}[10m])) or vector(0)) < 3"
    }

    "Taskguard: no instance is free" = {
      severity = "WARNING"
      means    = "Cloud Run answers 429"
      lasting  = "300s"
      query    = "sum(increase(${format(local.run_requests, "worker", "response_code=\"429\"")}[10m])) > 5"
    }

    "Taskguard: tasks can never succeed" = {
      severity = "ERROR"
      means    = "tasks were rejected and are deleted"
      lasting  = "0s"
      query    = "sum by (outcome) (increase(${local.logged.rejected}{${local.logs}}[15m])) > 0"
    }

    "Taskguard: an act is uncertain" = {
      severity = "ERROR"
      means    = "an act may have been done, and an operator must answer whether it was"
      lasting  = "0s"
      query    = "sum(increase(${local.logged.uncertain}{${local.logs}}[15m])) > 0"
    }

    # Recovery counts a record until its caller comes back or an operator cancels it.
    "Taskguard: records are abandoned" = {
      severity = "ERROR"
      means    = "a record of Do has an act, and its caller has not come back"
      lasting  = "0s"
      query    = "sum(increase(${local.logged.abandoned}_count{${local.logs}}[15m])) > 0"
    }

    # An answer of the worker itself has a log line: the others are crashes, instances
    # that never started, and requests past their timeout. Five minutes late, when both
    # kinds of metric have arrived; a tenth of the answers may differ.
    "Taskguard: the worker dies or is cut off" = {
      severity = "CRITICAL"
      means    = "5xx answers without a log line"
      lasting  = "300s"
      query    = "(sum(increase(${format(local.run_requests, "worker", "response_code_class=\"5xx\"")}[15m] offset 5m)) - (sum(increase(${local.logged.deliveries}{${local.logs},status=~\"5.*\"}[15m] offset 5m)) or vector(0)) - (sum(increase(${local.logged.recoveries}{${local.logs},status=~\"5.*\"}[15m] offset 5m)) or vector(0)) > 5) > 0.1 * sum(increase(${format(local.run_requests, "worker", "response_code_class=\"5xx\"")}[15m] offset 5m))"
    }

    "Taskguard: the document lock fails" = {
      severity = "ERROR"
      means    = "the document lock answers 5xx"
      lasting  = "600s"
      query    = "sum(increase(${format(local.run_requests, "doclock", "response_code_class=\"5xx\"")}[15m])) > 5"
    }
  }

  # The runbook by heading, for a notification on a telephone: with this deployment's
  # names in the commands, and without links, which do not work there.
  runbook = { for s in split("\n### ", file("${path.module}/../../docs/operations.md")) : split("\n", s)[0] =>
    replace(replace(replace(replace(replace(split("\n## ", s)[0],
      "Taskguard:", "${title(var.name)}:"),
      "taskguard-", "${var.name}-"),
      "analyses --location=REGION", "${local.names.queue} --location=REGION"),
      "--location=REGION", "--location=${var.region} --project=${var.project}"),
    "/\\[([^]]*)\\]\\(#[^)]*\\)/", "$1 (docs/operations.md)")
  }

  notifications = { for name, alert in local.alerts : name => "${trimspace(local.runbook[alert.heading])}\n\n```promql\n${alert.query}\n```\n" }
}
