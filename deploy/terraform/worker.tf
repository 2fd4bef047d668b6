resource "google_cloud_run_v2_service" "worker" {
  project  = var.project
  location = var.region
  name     = local.worker_name
  # It holds no data: after a deletion an apply creates it again.
  deletion_protection = false
  # A caller needs run.invoker, wherever the call comes from.
  ingress = var.worker_ingress

  template {
    service_account                  = google_service_account.this["worker"].email
    timeout                          = "${local.request_seconds}s"
    max_instance_request_concurrency = var.worker_concurrency

    scaling {
      min_instance_count = var.worker_min_instances
      max_instance_count = var.worker_max_instances
    }

    containers {
      name  = "worker"
      image = var.worker_image
      # It starts, and takes deliveries, once the application's probe has passed.
      depends_on = var.app == null ? null : ["app"]

      # The container with a port gets the requests.
      ports {
        name           = "http1"
        container_port = 8080
      }

      resources {
        limits = {
          cpu    = var.worker_cpu
          memory = var.worker_memory
        }
        # CPU only during requests is enough: a run and its heartbeats are part of one.
        cpu_idle          = true
        startup_cpu_boost = true
      }

      dynamic "env" {
        for_each = merge(local.otlp_region, local.worker_env, var.worker_env)
        content {
          name  = env.key
          value = env.value
        }
      }

      # By reference: the secrets themselves are never in Terraform's state.
      dynamic "env" {
        for_each = var.worker_secrets
        content {
          name = env.key
          value_source {
            secret_key_ref {
              secret  = env.value.secret
              version = env.value.version
            }
          }
        }
      }

      # Ready once Firestore has answered: a new account's role takes a minute or two.
      startup_probe {
        period_seconds    = 5
        timeout_seconds   = 3
        failure_threshold = 48
        http_get {
          path = "/health/ready"
        }
      }

      # Does not depend on Firestore, whose outage must not restart every instance.
      liveness_probe {
        period_seconds    = 30
        timeout_seconds   = 5
        failure_threshold = 3
        http_get {
          path = "/health/live"
        }
      }
    }

    # After the worker, because ignore_changes below names the first container's image.
    dynamic "containers" {
      for_each = var.app[*]
      content {
        name  = "app"
        image = containers.value.image

        resources {
          limits = {
            cpu    = containers.value.cpu
            memory = containers.value.memory
          }
          cpu_idle          = true
          startup_cpu_boost = true
        }

        dynamic "env" {
          for_each = containers.value.env
          content {
            name  = env.key
            value = env.value
          }
        }

        dynamic "env" {
          for_each = containers.value.secrets
          content {
            name = env.key
            value_source {
              secret_key_ref {
                secret  = env.value.secret
                version = env.value.version
              }
            }
          }
        }

        startup_probe {
          period_seconds    = 2
          timeout_seconds   = 2
          failure_threshold = 60
          http_get {
            path = containers.value.health
            port = containers.value.port
          }
        }

        liveness_probe {
          period_seconds    = 30
          timeout_seconds   = 5
          failure_threshold = 3
          http_get {
            path = containers.value.health
            port = containers.value.port
          }
        }
      }
    }
  }

  lifecycle {
    # The build sets which image runs and which revision has the traffic. An apply must
    # not roll back to the first image. The revision's name is not listed: a release
    # names its own revision, and no two have one name. Nor is the application's image:
    # no build of ours makes it, and the variable app sets it.
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
    google_firestore_index.analyses,
    google_project_iam_member.database,
    google_project_service.api,
    google_secret_manager_secret_iam_member.worker,
  ]
}
