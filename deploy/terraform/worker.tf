locals {
  # Known before the service is, which its own environment needs.
  worker_url = "https://taskguard-worker-${data.google_project.this.number}.${var.region}.run.app"

  run_seconds = var.run_timeout_minutes * 60
  # As the worker gives the tasks it creates, and `taskguard submit` does.
  dispatch_seconds = min(1800, local.run_seconds + 60)
  request_seconds  = local.dispatch_seconds

  analyzer = coalesce(var.analyzer, var.app == null ? "builtin:document" : "http://localhost:${var.app.port}/analyze")

  worker_env = merge({
    GOOGLE_CLOUD_PROJECT   = var.project
    FIRESTORE_DATABASE     = var.database
    FIRESTORE_TRANSACTIONS = var.firestore_transactions
    ANALYSES_COLLECTION    = var.collection
    LOCK_TTL               = "${var.lock_ttl_seconds}s"
    LOCK_HEARTBEAT         = "${var.lock_heartbeat_seconds}s"
    MAX_ATTEMPTS           = tostring(var.max_attempts)
    MAX_RUNS               = tostring(var.max_runs)
    RUN_TIMEOUT            = "${var.run_timeout_minutes}m"
    ANALYZER               = local.analyzer
    ANALYZER_OUTPUT        = var.analyzer_output
    TASK_AUTH              = "iam"
    TASK_QUEUE             = "projects/${var.project}/locations/${var.region}/queues/${var.queue}"
    TASK_TARGET_URL        = local.worker_url
    TASK_CALLER            = google_service_account.this["caller"].email
    LOG_FORMAT             = "json" # the log metrics read its fields
  }, local.otlp_env)

  otlp_env = { for name, value in { OTEL_EXPORTER_OTLP_ENDPOINT = var.otlp_endpoint } : name => value if value != null }

  # Google's own endpoint, by which the services send as their accounts. It takes no
  # metrics without a place. Not in otlp_env: the services' own attributes may replace it.
  otlp_google = var.otlp_endpoint == null ? false : length(regexall("(?i)^https://telemetry\\.([a-z0-9-]+\\.rep\\.)?googleapis\\.com(:[0-9]+)?(/|$)", var.otlp_endpoint)) == 1
  otlp_place  = { for name, value in { OTEL_RESOURCE_ATTRIBUTES = "cloud.region=${var.region}" } : name => value if local.otlp_google }
}

resource "google_cloud_run_v2_service" "worker" {
  project  = var.project
  location = var.region
  name     = "taskguard-worker"
  # It holds no data: what a deletion takes away, an apply brings back.
  deletion_protection = false
  # Nobody may call without run.invoker, from wherever it is.
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

      # The container with one gets the requests.
      ports {
        name           = "http1"
        container_port = 8080
      }

      resources {
        limits = {
          cpu    = var.worker_cpu
          memory = var.worker_memory
        }
        # CPU only during requests is enough: a run and its heartbeats are in one.
        cpu_idle          = true
        startup_cpu_boost = true
      }

      dynamic "env" {
        for_each = merge(local.otlp_place, local.worker_env, var.worker_env)
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

      # Knows nothing of Firestore, whose outage must not restart every instance.
      liveness_probe {
        period_seconds    = 30
        timeout_seconds   = 5
        failure_threshold = 3
        http_get {
          path = "/health/live"
        }
      }
    }

    # After the worker, whose place is that of the image that is ignored below.
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
    # The build's: which image runs and which revision has the traffic. An apply
    # that put back the first image would be a roll-back that nobody asked for. The
    # revision's name is not here: a release names its own, and no two have one name.
    # Nor is the application's image: no build of ours makes it, and `app` says it.
    ignore_changes = [
      client,
      client_version,
      template[0].annotations,
      template[0].containers[0].image,
      template[0].labels,
      traffic,
    ]

    precondition {
      condition     = local.run_seconds < local.request_seconds && local.request_seconds <= local.dispatch_seconds && local.dispatch_seconds <= 1800
      error_message = "A run must end before its request, and a request before Cloud Tasks stops listening, 30 minutes at most."
    }
  }

  depends_on = [
    google_firestore_index.analyses,
    google_project_iam_member.database,
    google_project_service.api,
    google_secret_manager_secret_iam_member.worker,
  ]
}
