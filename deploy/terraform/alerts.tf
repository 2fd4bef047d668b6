resource "google_monitoring_alert_policy" "taskguard" {
  for_each = local.alerts

  project               = var.project
  display_name          = each.key
  combiner              = "OR"
  severity              = each.value.severity
  enabled               = each.value.enabled
  notification_channels = each.value.channels
  user_labels           = var.labels

  # Exactly one: Google refuses a second next to a PromQL query.
  conditions {
    display_name = each.value.means

    condition_prometheus_query_language {
      query               = each.value.query
      duration            = each.value.lasting
      evaluation_interval = "60s"
      # Google knows a new log metric only after some minutes: the first apply would fail.
      disable_metric_validation = true
    }
  }

  dynamic "alert_strategy" {
    for_each = [for minutes in var.renotify_minutes[*] : minutes if length(each.value.channels) > 0]
    content {
      notification_channel_strategy {
        notification_channel_names = each.value.channels
        renotify_interval          = "${60 * alert_strategy.value}s"
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = local.notifications[each.key]
  }

  depends_on = [google_cloud_scheduler_job.recover, google_logging_metric.taskguard]
}
