# The worker writes one line for each delivery and each recovery call; docs/operations.md
# describes their fields. These metrics count and measure the lines.

locals {
  service_lines = "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=\"%s\""
  job_lines     = "resource.type=\"cloud_run_job\" AND resource.labels.job_name=\"${local.names.long}\""
  worker_only   = format(local.service_lines, local.names.worker)
  worker_lines  = local.long ? "((${local.worker_only}) OR (${local.job_lines}))" : local.worker_only
  # Without the smoke test of a release, which requests an analysis that does not exist.
  delivery = "${local.worker_lines} AND jsonPayload.message=~\"^(delivery|rejected)$\" AND NOT (jsonPayload.analysis_id=~\"^smoke-test-\" AND jsonPayload.outcome=\"not_found\")"
  recovery = "${format(local.service_lines, local.recoverer)} AND jsonPayload.message=\"recovery\""
  # A call of exportDocuments that succeeded: a failed one is logged as an ERROR.
  exports = "resource.type=\"cloud_scheduler_job\" AND resource.labels.job_id=\"${local.names.export}\" AND jsonPayload.\"@type\"=\"type.googleapis.com/google.cloud.scheduler.logging.AttemptFinished\" AND severity<ERROR"

  # With a value, the metric is a distribution of it; without, a count. There are few
  # labels with few values: each combination is a time series, which costs.
  log_metrics = {
    deliveries       = { of = "Deliveries", filter = local.delivery, labels = ["outcome", "status"], value = null }
    run_ms           = { of = "Run time", filter = "${local.delivery} AND jsonPayload.run_ms>=0", labels = ["outcome"], value = "run_ms" }
    acquire_ms       = { of = "Time to acquire the lock", filter = "${local.delivery} AND jsonPayload.acquire_ms>=0", labels = [], value = "acquire_ms" }
    attempts         = { of = "Number of the attempt that a run was", filter = "${local.delivery} AND jsonPayload.attempt>=1 AND jsonPayload.run_ms>=0", labels = [], value = "attempt" }
    late_starts      = { of = "Analyses that started later than the objective", filter = "${local.delivery} AND jsonPayload.time_to_start_ms>${var.start_seconds * 1000}", labels = [], value = null }
    time_to_start_ms = { of = "Time from creation to start", filter = "${local.delivery} AND jsonPayload.time_to_start_ms>=0", labels = [], value = "time_to_start_ms" }
    time_to_ready_ms = { of = "Time from creation to READY", filter = "${local.delivery} AND jsonPayload.time_to_ready_ms>=0", labels = [], value = "time_to_ready_ms" }
    oldest_ms        = { of = "Age of the oldest unfinished analysis", filter = "${local.recovery} AND jsonPayload.oldest_ms>=0", labels = [], value = "oldest_ms" }
    exhausted        = { of = "Analyses that were given up", filter = "${local.delivery} AND jsonPayload.code=~\"^(attempts_exhausted|run_time_exhausted|not_started|crashed)$\"", labels = [], value = null }
    timeouts         = { of = "Runs that passed RUN_TIMEOUT or STALL_TIMEOUT", filter = "${local.delivery} AND jsonPayload.code=~\"^(run_timeout|stalled)$\"", labels = [], value = null }
    long_waits       = { of = "Attempts whose analyzer asked for a long wait", filter = "${local.delivery} AND jsonPayload.asked_ms>${60000 * local.quiet_minutes}", labels = [], value = null }
    waits_over_1h    = { of = "Attempts whose analyzer asked for a wait of over an hour", filter = "${local.delivery} AND jsonPayload.asked_ms>${60000 * max(60, local.quiet_minutes)}", labels = [], value = null }
    waits_over_4h    = { of = "Attempts whose analyzer asked for a wait of over four hours", filter = "${local.delivery} AND jsonPayload.asked_ms>${60000 * max(240, local.quiet_minutes)}", labels = [], value = null }
    rejected         = { of = "Tasks that can never succeed", filter = "${local.worker_lines} AND jsonPayload.message=\"rejected\"", labels = ["outcome"], value = null }
    uncertain        = { of = "Analyses with an act that may have been done", filter = "${local.worker_lines} AND jsonPayload.message=\"an act is uncertain\"", labels = [], value = null }
    steals           = { of = "Stale locks taken over", filter = "${local.delivery} AND jsonPayload.stolen=true", labels = [], value = null }
    losses           = { of = "Locks lost during a run", filter = "${local.delivery} AND jsonPayload.lost:*", labels = ["lost"], value = null }
    follow_ups       = { of = "Follow-up deliveries wanted", filter = "${local.delivery} AND jsonPayload.follow_up:*", labels = ["follow_up"], value = null }
    recoveries       = { of = "Recovery calls", filter = local.recovery, labels = ["outcome", "status"], value = null }
    abandoned        = { of = "Unfinished records of Do with an act, whose callers have not come back", filter = "${local.recovery} AND jsonPayload.abandoned>0", labels = [], value = "abandoned" }
    exports          = { of = "Exports of the database that Cloud Scheduler began", filter = local.exports, labels = [], value = null }
    stuck            = { of = "Orphaned analyses that do not wait in the queue", filter = "${local.recovery} AND jsonPayload.stuck>0", labels = [], value = "stuck" }
  }

  # As PromQL names them.
  logged = { for name, m in local.log_metrics : name => "logging_googleapis_com:user_${replace(var.name, "-", "_")}_${name}" }
}
