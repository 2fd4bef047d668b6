resource "google_cloud_run_v2_service" "doclock" {
  count = local.doclock ? 1 : 0

  project             = var.project
  location            = var.region
  name                = local.names.doclock
  labels              = var.labels
  deletion_protection = var.deletion_protection
  # Browsers call it. The service checks sessions, and tokens of the sweep, itself.
  ingress              = var.doclock_ingress
  invoker_iam_disabled = !var.doclock_invoker_check

  scaling {
    max_instance_count = var.doclock_max_instances
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
    service_account = local.account["doclock"].email
    # An open WebSocket is one request; the page connects again after its end.
    timeout                          = "3600s"
    max_instance_request_concurrency = 1000

    dynamic "vpc_access" {
      for_each = var.doclock_vpc[*]
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
      name  = "doclock"
      image = var.doclock_image

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

      dynamic "env" {
        for_each = merge(local.otlp_region, local.doclock_env, var.doclock_env)
        content {
          name  = env.key
          value = env.value
        }
      }

      # By reference: the secret itself is never in Terraform's state.
      env {
        name = "SESSION_SECRET"
        value_source {
          secret_key_ref {
            secret  = var.session_secret
            version = var.session_secret_version
          }
        }
      }

      # PUSHER_APP_KEY is in doclock_env.
      dynamic "env" {
        for_each = var.pusher_secret == null ? [] : [var.pusher_secret]
        content {
          name = "PUSHER_APP_SECRET"
          value_source {
            secret_key_ref {
              secret  = env.value
              version = var.pusher_secret_version
            }
          }
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

      liveness_probe {
        period_seconds    = 30
        timeout_seconds   = 5
        failure_threshold = 3
        http_get {
          path = "/health/live"
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
      template[0].containers[0].image,
      template[0].labels,
      traffic,
    ]
  }

  depends_on = [
    google_firestore_database.doclock,
    google_project_iam_member.database,
    google_project_service.api,
    google_secret_manager_secret_iam_member.pusher,
    google_secret_manager_secret_iam_member.session,
  ]
}
