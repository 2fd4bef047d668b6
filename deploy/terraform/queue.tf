resource "google_cloud_tasks_queue" "analyses" {
  project  = var.project
  location = var.region
  name     = local.names.queue

  rate_limits {
    max_concurrent_dispatches = local.max_concurrent_dispatches
    max_dispatches_per_second = local.max_dispatches_per_second
  }

  retry_config {
    max_attempts       = local.queue_flags["--max-attempts"]
    max_retry_duration = local.queue_flags["--max-retry-duration"]
    min_backoff        = local.min_backoff
    max_backoff        = local.max_backoff
    max_doublings      = local.max_doublings
  }

  dynamic "stackdriver_logging_config" {
    for_each = var.queue_log_ratio[*]
    content {
      sampling_ratio = stackdriver_logging_config.value
    }
  }

  depends_on = [google_project_service.api]
}
