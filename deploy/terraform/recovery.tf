# Recovery in a service of its own, for a worker whose idle instances are expensive: see
# recovery_service.

resource "google_cloud_run_v2_service" "recovery" {
  count = var.recovery_service ? 1 : 0

  project             = var.project
  location            = var.region
  name                = local.names.recovery
  labels              = var.labels
  deletion_protection = var.deletion_protection
  ingress             = var.worker_ingress

  scaling {
    max_instance_count = 1
  }

  dynamic "binary_authorization" {
    for_each = var.binary_authorization[*]
    content {
      use_default = binary_authorization.value == "default" ? true : null
      policy      = binary_authorization.value == "default" ? null : binary_authorization.value
    }
  }

  template {
    encryption_key  = var.kms_key
    service_account = local.account["worker"].email
    timeout         = "60s"

    dynamic "vpc_access" {
      for_each = var.worker_vpc[*]
      content {
        egress = vpc_access.value.egress
        network_interfaces {
          network    = vpc_access.value.network
          subnetwork = vpc_access.value.subnetwork
          tags       = vpc_access.value.tags
        }
      }
    }

    containers {
      name = "worker"
      # What the last release has put there; worker_image is only the first.
      image = google_cloud_run_v2_service.worker.template[0].containers[0].image

      ports {
        name           = "http1"
        container_port = 8080
      }

      resources {
        limits = {
          cpu    = "1"
          memory = "512Mi"
        }
        cpu_idle          = true
        startup_cpu_boost = true
      }

      # It runs no analysis: the tasks that it books go to the worker.
      dynamic "env" {
        for_each = merge(local.otlp_region, local.worker_env, { ANALYZER = "builtin:document" })
        content {
          name  = env.key
          value = env.value
        }
      }

      startup_probe {
        period_seconds    = 5
        timeout_seconds   = 3
        failure_threshold = 48
        http_get {
          path = "/health/ready"
        }
      }
    }
  }

  lifecycle {
    # The build sets them, as the worker's.
    ignore_changes = [
      client,
      client_version,
      template[0].annotations,
      template[0].labels,
      traffic,
    ]
  }

  depends_on = [
    google_firestore_index.analyses,
    google_project_iam_member.database,
    google_project_service.api,
  ]
}

resource "google_cloud_run_v2_service_iam_member" "recovery" {
  count = var.recovery_service ? 1 : 0

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.recovery[0].name
  role     = "roles/run.invoker"
  member   = local.account["caller"].member
}
