# The worker writes one line a delivery and one a recovery call; docs/operations.md
# says what is in them. These count and measure the lines.

locals {
  worker_lines = "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=\"${google_cloud_run_v2_service.worker.name}\""
  # Not what a release's smoke test asks for: an analysis that is not there.
  delivery = "${local.worker_lines} AND jsonPayload.message=\"delivery\" AND NOT (jsonPayload.analysis_id=~\"^smoke-test-\" AND jsonPayload.outcome=\"not_found\")"
  recovery = "${local.worker_lines} AND jsonPayload.message=\"recovery\""

  # With a value, a distribution of it; without, a count. Labels are few and of few
  # values: each combination is a time series that costs.
  log_metrics = {
    deliveries = { of = "Deliveries", filter = local.delivery, labels = ["outcome", "status"], value = null }
    run_ms     = { of = "Run time", filter = "${local.delivery} AND jsonPayload.run_ms>=0", labels = ["outcome"], value = "run_ms" }
    acquire_ms = { of = "Time to acquire the lock", filter = "${local.delivery} AND jsonPayload.acquire_ms>=0", labels = [], value = "acquire_ms" }
    attempts   = { of = "Number of the attempt that a run was", filter = "${local.delivery} AND jsonPayload.attempt>=1 AND jsonPayload.run_ms>=0", labels = [], value = "attempt" }
    exhausted  = { of = "Analyses whose attempts are exhausted", filter = "${local.delivery} AND jsonPayload.code=\"attempts_exhausted\"", labels = [], value = null }
    steals     = { of = "Stale locks taken over", filter = "${local.delivery} AND jsonPayload.stolen=true", labels = [], value = null }
    losses     = { of = "Locks lost during a run", filter = "${local.delivery} AND jsonPayload.lost:*", labels = ["lost"], value = null }
    follow_ups = { of = "Follow-up deliveries wanted", filter = "${local.delivery} AND jsonPayload.follow_up:*", labels = ["follow_up"], value = null }
    recoveries = { of = "Recovery calls", filter = local.recovery, labels = ["outcome", "status"], value = null }
    stuck      = { of = "Analyses that recovery found nobody working on", filter = "${local.recovery} AND jsonPayload.found>0", labels = [], value = "found" }
  }

  # As PromQL names them.
  logged = { for name, m in local.log_metrics : name => "logging_googleapis_com:user_taskguard_${name}" }
}

resource "google_logging_metric" "taskguard" {
  for_each = local.log_metrics

  project     = var.project
  name        = "taskguard/${each.key}"
  description = each.value.of
  filter      = each.value.filter

  metric_descriptor {
    metric_kind  = "DELTA"
    value_type   = each.value.value == null ? "INT64" : "DISTRIBUTION"
    unit         = each.value.value != null && endswith(each.key, "_ms") ? "ms" : "1"
    display_name = each.value.of

    dynamic "labels" {
      for_each = each.value.labels
      content {
        key        = labels.value
        value_type = "STRING"
      }
    }
  }

  label_extractors = { for field in each.value.labels : field => "EXTRACT(jsonPayload.${field})" }
  value_extractor  = each.value.value == null ? null : "EXTRACT(jsonPayload.${each.value.value})"

  # 1, 2, 4 … 8.4 million: milliseconds up to two hours, or analyses.
  dynamic "bucket_options" {
    for_each = each.value.value == null ? [] : [each.value.value]
    content {
      exponential_buckets {
        num_finite_buckets = 23
        growth_factor      = 2
        scale              = 1
      }
    }
  }

  depends_on = [google_project_service.api]
}
