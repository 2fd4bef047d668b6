# The job that runs what no delivery can: see long_jobs. The worker starts an execution for each
# analysis, with the arguments `run ID`.

resource "google_cloud_run_v2_job" "long" {
  count = local.long ? 1 : 0

  project             = var.project
  location            = var.region
  name                = local.names.long
  labels              = var.labels
  deletion_protection = var.deletion_protection

  dynamic "binary_authorization" {
    for_each = var.binary_authorization[*]
    content {
      use_default = binary_authorization.value == "default" ? true : null
      policy      = binary_authorization.value == "default" ? null : binary_authorization.value
    }
  }

  template {
    template {
      service_account = local.account["worker"].email
      encryption_key  = var.kms_key
      # After RUN_TIMEOUT, with time to release the lock and book the next attempt.
      timeout = "${var.long_jobs.run_timeout_minutes * 60 + 120}s"
      # The next attempt is booked in the queue, or by recovery, and waits as RETRY_MIN says.
      max_retries = 0

      containers {
        image = var.long_jobs.image

        resources {
          limits = {
            cpu    = var.long_jobs.cpu
            memory = var.long_jobs.memory
          }
        }

        dynamic "env" {
          for_each = local.long_env
          content {
            name  = env.key
            value = env.value
          }
        }

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
      }
    }
  }

  depends_on = [
    google_firestore_index.analyses,
    google_project_iam_member.database,
    google_project_service.api,
    google_secret_manager_secret_iam_member.worker,
  ]
}

resource "google_cloud_run_v2_job_iam_member" "worker" {
  count = local.long ? 1 : 0

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_job.long[0].name
  role     = "roles/run.jobsExecutorWithOverrides"
  member   = local.account["worker"].member
}

resource "google_cloud_run_v2_job_iam_member" "operator" {
  for_each = toset(local.long ? var.operators : [])

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_job.long[0].name
  role     = "roles/run.viewer"
  member   = each.key
}
