resource "google_logging_metric" "taskguard" {
  for_each = local.log_metrics

  project     = var.project
  name        = "${var.name}/${each.key}"
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

  # 1, 2, 4 … 134 million milliseconds (37 hours) or analyses.
  dynamic "bucket_options" {
    for_each = each.value.value == null ? [] : [each.value.value]
    content {
      exponential_buckets {
        num_finite_buckets = 27
        growth_factor      = 2
        scale              = 1
      }
    }
  }

  depends_on = [google_project_service.api]
}
