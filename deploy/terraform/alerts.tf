# Few, and each for something that somebody can do something about. What, is in
# docs/operations.md under the alert's name, and in the notification itself.

locals {
  run_requests  = "run_googleapis_com:request_count{monitored_resource=\"cloud_run_revision\",service_name=\"taskguard-%s\",%s}"
  queue_matcher = "monitored_resource=\"cloud_tasks_queue\",queue_id=\"${var.queue}\""
  queue_depth   = "cloudtasks_googleapis_com:queue_depth{${local.queue_matcher}}"
  attempts      = "sum(increase(cloudtasks_googleapis_com:queue_task_attempt_count{${local.queue_matcher}}[30m]))"
  queue_delays  = "cloudtasks_googleapis_com:queue_task_attempt_delays_bucket{${local.queue_matcher}}"

  # A log metric may hang on several kinds of resource; PromQL wants one named.
  logs = "monitored_resource=\"cloud_run_revision\""

  alerts = {
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

    "Taskguard: tasks are not sent" = {
      severity = "CRITICAL"
      means    = "there are tasks, and none is sent"
      lasting  = "900s"
      query    = "sum(min_over_time(${local.queue_depth}[30m])) > 0 unless ${local.attempts} > 0"
    }

    "Taskguard: tasks do not arrive" = {
      severity = "CRITICAL"
      means    = "tasks are sent, and no delivery is logged"
      lasting  = "900s"
      query    = "${local.attempts} > 0 unless sum(increase(${local.logged.deliveries}{${local.logs}}[30m])) > 0"
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
      means    = "an analysis was given up after its last attempt"
      lasting  = "0s"
      query    = "sum(increase(${local.logged.exhausted}{${local.logs}}[15m])) > 0"
    }

    "Taskguard: locks are lost" = {
      severity = "WARNING"
      means    = "runs lose their lock"
      lasting  = "0s"
      query    = "sum(increase(${local.logged.losses}{${local.logs}}[30m])) > 3"
    }

    # A backlog is found as well, and is another alert's: where the queue is later
    # than a TTL, what waits in it says nothing here.
    "Taskguard: analyses are stuck" = {
      severity = "ERROR"
      means    = "for half an hour recovery has found analyses that nobody works on"
      lasting  = "1800s"
      query    = "sum(increase(${local.logged.stuck}_count{${local.logs}}[3m])) > 0 unless histogram_quantile(0.5, sum by (le) (rate(${local.queue_delays}[10m]))) > ${var.lock_ttl_seconds * 1000}"
    }

    # Also where there has never been one: nothing counts as none, from when the alert
    # is made. It lasts as long as the job's first calls need to be counted.
    "Taskguard: recovery has stopped" = {
      severity = "ERROR"
      means    = "no recovery call has succeeded for ten minutes"
      lasting  = "900s"
      query    = "(sum(increase(${local.logged.recoveries}{${local.logs},outcome=\"recovered\"}[10m])) or vector(0)) < 1"
    }

    "Taskguard: no instance is free" = {
      severity = "WARNING"
      means    = "Cloud Run answers 429"
      lasting  = "300s"
      query    = "sum(increase(${format(local.run_requests, "worker", "response_code=\"429\"")}[10m])) > 5"
    }

    # A task comes again every 10 minutes at most: a refusal that its next delivery
    # finds mended is over sooner than this lasts.
    "Taskguard: tasks can never succeed" = {
      severity = "WARNING"
      means    = "deliveries are refused for what they ask"
      lasting  = "1800s"
      query    = "sum by (outcome) (increase(${local.logged.deliveries}{${local.logs},outcome=~\"bad_request|too_large|not_found|malformed\"}[15m])) > 0"
    }

    # What it answered itself has a line: the rest are crashes, instances that never
    # started, and requests past their timeout. Five minutes late, when both kinds of
    # metric are there; and of many answers a few lines more or fewer are no death.
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

  # The runbook, by heading, to be read on a telephone: with the names that commands
  # need, and without links, which lead nowhere there.
  runbook = { for s in split("\n### ", file("${path.module}/../../docs/operations.md")) : split("\n", s)[0] =>
    replace(replace(replace(split("\n## ", s)[0],
      "analyses --location=REGION", "${var.queue} --location=REGION"),
      "--location=REGION", "--location=${var.region} --project=${var.project}"),
    "/\\[([^]]*)\\]\\(#[^)]*\\)/", "$1 (docs/operations.md)")
  }
}

resource "google_monitoring_alert_policy" "taskguard" {
  for_each = { for name, alert in local.alerts : name => alert if local.doclock || name != "Taskguard: the document lock fails" }

  project               = var.project
  display_name          = each.key
  combiner              = "OR"
  severity              = each.value.severity
  notification_channels = var.notification_channels

  # Exactly one: Google refuses a second beside a query of PromQL.
  conditions {
    display_name = each.value.means

    condition_prometheus_query_language {
      query               = each.value.query
      duration            = each.value.lasting
      evaluation_interval = "60s"
      # A new log metric is unknown for some minutes: the first apply would fail.
      disable_metric_validation = true
    }
  }

  documentation {
    mime_type = "text/markdown"
    # The page has the query of the variables' defaults.
    content = replace(local.runbook[each.key], "/(?s)```promql\n.*?\n```/", "```promql\n${each.value.query}\n```")
  }

  depends_on = [google_cloud_scheduler_job.recover, google_logging_metric.taskguard]
}
