locals {
  # Two in a row, in the order of the runbook.
  charts = [
    { title = "Deliveries by outcome, a minute", unit = "1", queries = {
      "$${outcome} $${status}" = "60 * sum by (outcome, status) (rate(${local.logged.deliveries}{${local.logs}}[5m]))"
    } },
    { title = "Tasks in the queue", unit = "1", queries = {
      "tasks" = "sum(${local.queue_depth})"
    } },
    { title = "How late tasks are delivered", unit = "ms", queries = {
      "half" = "histogram_quantile(0.5, sum by (le) (rate(${local.queue_delays}[5m])))"
      "p95"  = "histogram_quantile(0.95, sum by (le) (rate(${local.queue_delays}[5m])))"
    } },
    { title = "Answers to the queue, a minute", unit = "1", queries = {
      "$${response_code}" = "60 * sum by (response_code) (rate(cloudtasks_googleapis_com:queue_task_attempt_count{${local.queue_matcher}}[5m]))"
    } },
    { title = "Orphaned analyses that do not wait in the queue, at each recovery", unit = "1", queries = {
      "stuck" = "sum(increase(${local.logged.stuck}_sum{${local.logs}}[5m])) / sum(increase(${local.logged.stuck}_count{${local.logs}}[5m]))"
    } },
    { title = "Recovery calls, in ten minutes", unit = "1", queries = {
      "$${outcome}" = "sum by (outcome) (increase(${local.logged.recoveries}{${local.logs}}[10m]))"
    } },
    { title = "Time from creation to start and to READY", unit = "ms", queries = {
      "start, half" = "histogram_quantile(0.5, sum by (le) (rate(${local.logged.time_to_start_ms}_bucket{${local.logs}}[10m])))"
      "start, p95"  = "histogram_quantile(0.95, sum by (le) (rate(${local.logged.time_to_start_ms}_bucket{${local.logs}}[10m])))"
      "READY, p95"  = "histogram_quantile(0.95, sum by (le) (rate(${local.logged.time_to_ready_ms}_bucket{${local.logs}}[10m])))"
    } },
    { title = "Age of the oldest unfinished analysis", unit = "ms", queries = {
      "age" = "sum(increase(${local.logged.oldest_ms}_sum{${local.logs}}[5m])) / sum(increase(${local.logged.oldest_ms}_count{${local.logs}}[5m]))"
    } },
    { title = "Run time", unit = "ms", queries = {
      "half" = "histogram_quantile(0.5, sum by (le) (rate(${local.logged.run_ms}_bucket{${local.logs}}[10m])))"
      "p95"  = "histogram_quantile(0.95, sum by (le) (rate(${local.logged.run_ms}_bucket{${local.logs}}[10m])))"
    } },
    { title = "Time to acquire a lock", unit = "ms", queries = {
      "half" = "histogram_quantile(0.5, sum by (le) (rate(${local.logged.acquire_ms}_bucket{${local.logs}}[10m])))"
      "p95"  = "histogram_quantile(0.95, sum by (le) (rate(${local.logged.acquire_ms}_bucket{${local.logs}}[10m])))"
    } },
    { title = "Locks lost and taken over, in ten minutes", unit = "1", queries = {
      "lost: $${lost}" = "sum by (lost) (increase(${local.logged.losses}{${local.logs}}[10m]))"
      "taken over"     = "sum(increase(${local.logged.steals}{${local.logs}}[10m]))"
    } },
    { title = "Attempts: mean, and analyses given up in ten minutes", unit = "1", queries = {
      "mean attempt" = "sum(increase(${local.logged.attempts}_sum{${local.logs}}[10m])) / sum(increase(${local.logged.attempts}_count{${local.logs}}[10m]))"
      "given up"     = "sum(increase(${local.logged.exhausted}{${local.logs}}[10m]))"
    } },
    { title = "Follow-ups, in ten minutes", unit = "1", queries = {
      "$${follow_up}" = "sum by (follow_up) (increase(${local.logged.follow_ups}{${local.logs}}[10m]))"
    } },
    { title = "Instances", unit = "1", queries = {
      "$${service_name} $${state}" = "sum by (service_name, state) (run_googleapis_com:container_instance_count{monitored_resource=\"cloud_run_revision\",service_name=~\"${var.name}-(worker|doclock|console)\"})"
    } },
    { title = "Requests by code, a minute", unit = "1", queries = {
      "$${service_name} $${response_code}" = "60 * sum by (service_name, response_code) (rate(run_googleapis_com:request_count{monitored_resource=\"cloud_run_revision\",service_name=~\"${var.name}-(worker|doclock|console)\"}[5m]))"
    } },
    { title = "Memory in use, of its limit", unit = "10^2.%", queries = {
      "$${service_name} p95" = "histogram_quantile(0.95, sum by (le, service_name) (rate(run_googleapis_com:container_memory_utilizations_bucket{monitored_resource=\"cloud_run_revision\",service_name=~\"${var.name}-(worker|doclock|console)\"}[5m])))"
    } },
  ]

  dashboard = {
    displayName = local.names.dashboard
    mosaicLayout = {
      columns = 48
      # Cloud Monitoring does not store a zero, and each plan would add it again.
      tiles = [for i, chart in local.charts : merge({ for name, at in { xPos = 24 * (i % 2), yPos = 16 * floor(i / 2) } : name => at if at > 0 }, {
        width  = 24
        height = 16
        widget = {
          title = chart.title
          xyChart = {
            dataSets = [for legend, query in chart.queries : {
              legendTemplate  = legend
              plotType        = "LINE"
              targetAxis      = "Y1"
              timeSeriesQuery = { prometheusQuery = query, unitOverride = chart.unit }
            }]
            yAxis = { scale = "LINEAR" }
          }
        }
      })]
    }
  }
}
