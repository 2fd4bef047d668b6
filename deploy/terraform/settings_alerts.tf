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

  # How many tasks wait because an analyzer asked for it, or a few more. A wait of up to an
  # hour counts for an hour, of up to four hours for four, a longer one for twelve, which is the
  # longest; and 15 minutes more, until the task is sent.
  waiting = join(" + ", [for metric, window in { long_waits = "[75m]", waits_over_1h = "[3h] offset 75m", waits_over_4h = "[8h] offset 255m" } :
    "(sum(increase(${local.logged[metric]}{${local.logs}}${window})) or vector(0))"
  ])

  # More tasks than those, and none is sent.
  standstill = "sum(min_over_time(${local.queue_depth}[%dm])) > ${local.waiting} unless ${local.attempts} > 0"
  # After it, for two hours: what was late is no news.
  resumed = "count_over_time((${format(local.standstill, local.quiet_minutes, local.quiet_minutes)})[2h:5m])"

  # A log metric may belong to several kinds of resource; PromQL needs one of them.
  logs = "monitored_resource=\"cloud_run_revision\""

  # By the name that Cloud Monitoring shows; heading is the section of the runbook.
  # Each comparison of a query is a line of its own.
  alerts = { for heading, alert in local.all_alerts : replace(heading, "Taskguard", title(var.name)) => merge(alert, {
    heading  = heading, query = replace(alert.query, "/ (and|or|unless) ([(csh])/", "\n$1 $2")
    enabled  = !try(var.alert_overrides[trimprefix(heading, "Taskguard: ")].disabled, false)
    channels = lookup(var.notification_channels_by_severity, alert.severity, var.notification_channels)
    })
    if !contains(concat(local.doclock ? [] : ["the document lock fails"], var.backup_bucket == null ? ["the export has stopped"] : []), trimprefix(heading, "Taskguard: "))
  }

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

  # What alert_overrides may change, in the unit of each condition; null: a variable of its own.
  usual_thresholds = merge(
    { for name, s in local.share_alerts : name => s.percent },
    { "tasks wait" = 10, "tasks are not sent" = local.quiet_minutes, "tasks do not arrive" = 30, "recovery has stopped" = 3 },
    { for name in ["attempts are exhausted", "analyses are stuck", "tasks can never succeed", "an act is uncertain", "records are abandoned"] : name => 0 },
    { for name in ["analyses start late", "deliveries are answered with errors", "an analysis is not finished", "the backlog grows", "the export has stopped"] : name => null },
  )
  thresholds = { for name, usual in local.usual_thresholds : name => try(coalesce(var.alert_overrides[name].threshold), usual) }

  # What is counted in a time, for shares.
  counted    = "sum(increase(%s[TIME]))"
  delivered  = format(local.counted, "${local.logged.deliveries}{${local.logs},outcome%s}")
  requested  = format(local.counted, local.run_requests)
  ended      = format(local.delivered, "=~\"ready|failed|retry|continued|lock_lost\"")
  worker_5xx = format(local.requested, "worker", "response_code_class=\"5xx\"")
  queued     = format(local.counted, "cloudtasks_googleapis_com:queue_task_attempt_count{${local.queue_matcher}%s}")
  long_waits = "${local.logged.long_waits}{${local.logs}}"
  timed_out  = format(local.counted, "${local.logged.timeouts}{${local.logs}}")
  # The worker's requests without recovery's, 60 an hour, which would hide a share of few.
  # Recovery may be a service of its own.
  recovered = "${local.logged.recoveries}{${local.logs},service_name=\"${local.names.worker}\"%s}"
  tasks     = "(${format(local.requested, "worker", "response_code!=\"\"")} - (${format(local.counted, format(local.recovered, ""))} or vector(0)))"
  # An answer of the worker itself has a log line: the others are crashes, instances that
  # never started, and requests past their timeout. Five minutes late, when both kinds of
  # metric have arrived; a tenth of the answers may differ.
  logged_5xx = [for lines in ["${local.logged.deliveries}{${local.logs}%s}", local.recovered] :
    "(${format(local.counted, format(lines, ",status=~\"5.*\""))} or vector(0))"
  ]
  unlogged = "((${local.worker_5xx} - ${join(" - ", local.logged_5xx)}) > 0.1 * ${local.worker_5xx})"

  # An alert of these fires when there are more bad events than floor, and their share is over
  # its threshold in percent. The short time decides if it has over 20 events, otherwise the
  # long one does. So the same alert holds at ten analyses a day and at 100,000.
  share_alerts = {
    # The queue's view: also what does not reach the worker. A killer crashes four times, which is not enough.
    "the queue sees errors" = {
      severity = "CRITICAL", percent = 10, of = "the queue's attempts are not answered 2xx", lasting = "600s"
      short    = "[5m]", long = "[1h]", floor = 4
      bad      = format(local.queued, ",response_code!~\"(?i)ok|2..\"")
      all      = format(local.queued, "")
    }
    "Firestore is out of reach" = {
      severity = "CRITICAL", percent = 10, of = "the deliveries are answered 503 unavailable", lasting = "300s"
      short    = "[5m]", long = "[1h]", floor = 4
      bad      = format(local.delivered, "=\"unavailable\"")
      all      = format(local.counted, "${local.logged.deliveries}{${local.logs}}")
    }
    "the worker dies or is cut off" = {
      severity = "CRITICAL", percent = 5, of = "the requests, without recovery's, are answered 5xx without a log line", lasting = "300s"
      short    = "[15m] offset 5m", long = "[1h] offset 5m", floor = 5
      bad      = local.unlogged
      all      = local.tasks
    }
    # A long wait that an analyzer asked for is no failure, and timeouts are another alert's.
    "attempts are retried" = {
      severity = "ERROR", percent = 30, of = "the attempts fail and are retried", lasting = "600s"
      short    = "[5m]", long = "[1h]", floor = 3
      bad      = "(${format(local.delivered, "=\"retry\"")} - (${format(local.counted, local.long_waits)} or vector(0)) - (${local.timed_out} or vector(0)))"
      all      = local.ended
    }
    "runs time out" = {
      severity = "ERROR", percent = 2, of = "the runs pass RUN_TIMEOUT or STALL_TIMEOUT", lasting = "0s"
      short    = "[30m]", long = "[6h]", floor = 1
      bad      = local.timed_out
      all      = local.ended
    }
    # Or an analysis that crashed twice in a row, which is delayed while its instance is busy.
    "analyses crash" = {
      severity = "ERROR", percent = 1, of = "the runs get no answer of their worker, or a suspect waits to run alone", lasting = "0s"
      short    = "[30m] offset 5m", long = "[6h] offset 5m", floor = 1
      bad      = local.unlogged
      all      = local.ended
      or       = replace("${format(local.delivered, "=\"suspect\"")} > 0 or ", "TIME", "30m")
    }
    "analyses fail" = {
      severity = "ERROR", percent = 10, of = "the analyses end FAILED", lasting = "600s"
      short    = "[30m]", long = "[12h]", floor = 2
      bad      = format(local.delivered, "=\"failed\"")
      all      = format(local.delivered, "=~\"ready|failed\"")
    }
    "the document lock fails" = {
      severity = "ERROR", percent = 1, of = "the document lock's answers are 5xx", lasting = "600s"
      short    = "[15m]", long = "[6h]", floor = 5
      bad      = format(local.requested, "doclock", "response_code_class=\"5xx\"")
      all      = format(local.requested, "doclock", "response_code!=\"\"")
    }
    "locks are lost" = {
      severity = "WARNING", percent = 2, of = "the runs lose their lock", lasting = "0s"
      short    = "[30m]", long = "[6h]", floor = 3
      bad      = format(local.counted, "${local.logged.losses}{${local.logs},lost!=\"cancelled\"}")
      all      = local.ended
    }
    "no instance is free" = {
      severity = "WARNING", percent = 2, of = "the requests are answered 429", lasting = "300s"
      short    = "[10m]", long = "[1h]", floor = 5
      bad      = format(local.requested, "worker", "response_code=\"429\"")
      all      = format(local.requested, "worker", "response_code!=\"\"")
    }
  }

  all_alerts = merge({ for name, s in local.share_alerts : "Taskguard: ${name}" => {
    severity = s.severity, means = "over ${local.thresholds[name]} % of ${s.of}", lasting = s.lasting
    query = join("", [try(s.or, ""),
      replace("(${s.bad} > ${s.floor}) > ${local.thresholds[name] / 100} * (${s.all} > 20) or ", "[TIME]", s.short),
      replace("(${s.bad} > ${s.floor}) > ${local.thresholds[name] / 100} * ${s.all}", "[TIME]", s.long),
    replace(" unless ${s.all} > 20", "[TIME]", s.short)])
    } }, {
    "Taskguard: analyses start late" = {
      severity = "ERROR"
      means    = "too many analyses start later than the objective"
      lasting  = "0s"
      query    = "(${local.burns.starts}) unless ${local.resumed}"
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
      means    = "half of the deliveries are over ${local.thresholds["tasks wait"]} minutes late"
      lasting  = "600s"
      query    = "histogram_quantile(0.5, sum by (le) (rate(${local.queue_delays}[10m]))) > ${60000 * local.thresholds["tasks wait"]} unless ${local.resumed}"
    }

    "Taskguard: the backlog grows" = {
      severity = "WARNING"
      means    = "the backlog is large and grows"
      lasting  = "1800s"
      query    = "sum(${local.queue_depth}) - (${local.waiting}) > ${var.backlog_tasks} and sum(${local.queue_depth}) > sum(${local.queue_depth} offset 30m)"
    }

    # All tasks may wait for RETRY_MAX.
    "Taskguard: tasks are not sent" = {
      severity = "CRITICAL"
      means    = "there are tasks, and none is sent for ${local.thresholds["tasks are not sent"]} minutes"
      lasting  = "900s"
      query    = format(local.standstill, local.thresholds["tasks are not sent"], local.thresholds["tasks are not sent"])
    }

    "Taskguard: tasks do not arrive" = {
      severity = "CRITICAL"
      means    = "tasks are sent, and no delivery is logged for ${local.thresholds["tasks do not arrive"]} minutes"
      lasting  = "900s"
      query    = "${format(local.attempts, local.thresholds["tasks do not arrive"])} > 0 unless sum(increase(${local.logged.deliveries}{${local.logs}}[${local.thresholds["tasks do not arrive"]}m])) > 0"
    }

    "Taskguard: attempts are exhausted" = {
      severity = "ERROR"
      means    = "an analysis was given up: its attempts or its run time are exhausted"
      lasting  = "0s"
      query    = "sum(increase(${local.logged.exhausted}{${local.logs}}[15m])) > ${local.thresholds["attempts are exhausted"]}"
    }

    # Analyses that wait in the queue are another alert's. Where recovery cannot ask the
    # queue, they count as stuck: if the queue delivers later than a TTL, this alert does
    # not fire. Recovery finds an analysis that still does not run once a TTL.
    "Taskguard: analyses are stuck" = {
      severity = "ERROR"
      means    = "for half an hour recovery has found orphaned analyses"
      lasting  = "1800s"
      query    = "sum(increase(${local.logged.stuck}_count{${local.logs}}[${ceil(var.lock_ttl_seconds / 60) + 3}m])) > ${local.thresholds["analyses are stuck"]} unless histogram_quantile(0.5, sum by (le) (rate(${local.queue_delays}[10m]))) > ${var.lock_ttl_seconds * 1000}"
    }

    # A line that is counted late must not start the 15 minutes again, so one or two calls
    # count as silence, of ten. It is also silence if there has never been a call: 15
    # minutes are enough for the job's first calls to be counted.
    "Taskguard: recovery has stopped" = {
      severity = "ERROR"
      means    = "fewer than ${local.thresholds["recovery has stopped"]} recovery calls have succeeded in ten minutes"
      lasting  = "900s"
      query    = "(sum(increase(${local.logged.recoveries}{${local.logs},outcome=\"recovered\"}[10m])) or vector(0)) < ${local.thresholds["recovery has stopped"]}"
    }

    "Taskguard: tasks can never succeed" = {
      severity = "ERROR"
      means    = "tasks were rejected and are deleted"
      lasting  = "0s"
      query    = "sum by (outcome) (increase(${local.logged.rejected}{${local.logs}}[15m])) > ${local.thresholds["tasks can never succeed"]}"
    }

    "Taskguard: an act is uncertain" = {
      severity = "ERROR"
      means    = "an act may have been done, and an operator must answer whether it was"
      lasting  = "0s"
      query    = "sum(increase(${local.logged.uncertain}{${local.logs}}[15m])) > ${local.thresholds["an act is uncertain"]}"
    }

    # Cloud Scheduler's last call of the job succeeded more than 24 + 2 hours ago. A query looks
    # back a day, and the job is called once a day, with five tries.
    "Taskguard: the export has stopped" = {
      severity = "ERROR"
      means    = "no export of the database has begun in 26 hours"
      lasting  = "7200s"
      query    = "(sum(increase(${local.logged.exports}{monitored_resource=\"cloud_scheduler_job\"}[24h])) or vector(0)) == 0"
    }

    # Recovery counts a record until its caller comes back or an operator cancels it.
    "Taskguard: records are abandoned" = {
      severity = "ERROR"
      means    = "a record of Do has an act, and its caller has not come back"
      lasting  = "0s"
      query    = "sum(increase(${local.logged.abandoned}_count{${local.logs}}[15m])) > ${local.thresholds["records are abandoned"]}"
    }
  })

  # The runbook by heading, for a notification on a telephone: with this deployment's
  # names in the commands, and without links, which do not work there.
  runbook = { for s in split("\n### ", file("${path.module}/../../docs/operations.md")) : split("\n", s)[0] =>
    replace(replace(replace(replace(replace(replace(split("\n## ", s)[0],
      "Taskguard:", "${title(var.name)}:"),
      "taskguard-", "${var.name}-"),
      "analyses --location=REGION", "${local.names.queue} --location=REGION"),
      "--location=REGION", "--location=${var.region} --project=${var.project}"),
      "/\\[([^]]*)\\]\\(#[^)]*\\)/", "$1 (docs/operations.md)"),
    "/\\[([^]]*)\\]\\(([a-z-]+\\.md)[^)]*\\)/", "$1 (docs/$2)")
  }

  notifications = { for name, alert in local.alerts : name => "${trimspace(local.runbook[alert.heading])}\n\n```promql\n${alert.query}\n```\n" }
}
