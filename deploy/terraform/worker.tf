resource "google_cloud_run_v2_service" "worker" {
  project  = var.project
  location = var.region
  name     = local.names.worker
  labels   = var.labels
  # It holds no data: after a deletion an apply creates it again.
  deletion_protection = var.deletion_protection
  # A caller needs run.invoker, wherever the call comes from.
  ingress = var.worker_ingress

  # Of the service: an apply changes it at once, whichever revision has the traffic.
  scaling {
    min_instance_count = var.worker_min_instances
    max_instance_count = var.worker_max_instances
  }

  dynamic "binary_authorization" {
    for_each = var.binary_authorization[*]
    content {
      use_default = binary_authorization.value == "default" ? true : null
      policy      = binary_authorization.value == "default" ? null : binary_authorization.value
    }
  }

  template {
    service_account                  = local.account["worker"].email
    timeout                          = "${local.request_seconds}s"
    max_instance_request_concurrency = var.worker_concurrency
    encryption_key                   = var.kms_key
    execution_environment            = local.second_generation ? "EXECUTION_ENVIRONMENT_GEN2" : null
    gpu_zonal_redundancy_disabled    = var.worker_gpu == null ? null : true

    # A revision's own limit is 100 otherwise; Google compares it with the quota of GPUs.
    dynamic "scaling" {
      for_each = [for n in [var.worker_max_instances] : n if n > 100 || var.worker_gpu != null]
      content {
        max_instance_count = scaling.value
      }
    }

    dynamic "node_selector" {
      for_each = var.worker_gpu[*]
      content {
        accelerator = node_selector.value
      }
    }

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

    dynamic "volumes" {
      for_each = local.volumes
      content {
        name = volumes.key

        dynamic "cloud_sql_instance" {
          for_each = volumes.value.cloud_sql == null ? [] : [volumes.value.cloud_sql]
          content {
            instances = cloud_sql_instance.value
          }
        }

        dynamic "empty_dir" {
          for_each = volumes.value.memory[*]
          content {
            medium     = "MEMORY"
            size_limit = empty_dir.value
          }
        }

        dynamic "gcs" {
          for_each = volumes.value.bucket[*]
          content {
            bucket    = gcs.value
            read_only = volumes.value.read_only
          }
        }

        dynamic "nfs" {
          for_each = volumes.value.nfs[*]
          content {
            server    = split(":", nfs.value)[0]
            path      = split(":", nfs.value)[1]
            read_only = volumes.value.read_only
          }
        }

        dynamic "secret" {
          for_each = volumes.value.secret[*]
          content {
            secret       = secret.value
            default_mode = 292 # 0444

            items {
              path    = reverse(split("/", secret.value))[0]
              version = volumes.value.secret_version
            }
          }
        }
      }
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
        limits = merge({
          cpu    = var.worker_cpu
          memory = var.worker_memory
        }, { for gpu, n in local.gpu_limits : gpu => n if var.app == null })
        # CPU only during requests is enough: a run and its heartbeats are part of one.
        cpu_idle          = local.cpu_idle
        startup_cpu_boost = true
      }

      dynamic "env" {
        for_each = merge(local.otlp_region, local.smoke_env, local.analyzer_env, local.worker_env, var.worker_env)
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

      dynamic "volume_mounts" {
        for_each = { for name, v in local.volumes : name => v if var.app == null }
        content {
          name       = volume_mounts.key
          mount_path = volume_mounts.value.path
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
          limits = merge({
            cpu    = containers.value.cpu
            memory = containers.value.memory
          }, local.gpu_limits)
          cpu_idle          = local.cpu_idle
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

        dynamic "volume_mounts" {
          for_each = local.volumes
          content {
            name       = volume_mounts.key
            mount_path = volume_mounts.value.path
          }
        }

        startup_probe {
          period_seconds    = 2
          timeout_seconds   = 2
          failure_threshold = ceil(containers.value.startup_seconds / 2)
          http_get {
            path = containers.value.health
            port = containers.value.port
          }
        }

        dynamic "liveness_probe" {
          for_each = containers.value.liveness ? [containers.value] : []
          content {
            period_seconds    = 30
            timeout_seconds   = 5
            failure_threshold = 3
            http_get {
              path = liveness_probe.value.health
              port = liveness_probe.value.port
            }
          }
        }
      }
    }
  }

  lifecycle {
    # The build sets which images run and which revision has the traffic. An apply must
    # not roll back to the first image. The revision's name is not listed: a release
    # names its own revision, and no two have one name.
    ignore_changes = [
      client,
      client_version,
      template[0].annotations,
      template[0].containers[0].image,
      template[0].containers[1].image,
      template[0].labels,
      traffic,
    ]
  }

  depends_on = [
    google_firestore_index.analyses,
    google_project_iam_member.cloud_sql,
    google_project_iam_member.database,
    google_project_service.api,
    google_secret_manager_secret_iam_member.worker,
    google_storage_bucket_iam_member.volume,
  ]
}
