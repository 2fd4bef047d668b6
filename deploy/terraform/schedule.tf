# Each minute. A failed call is not repeated: the next one follows.

resource "google_cloud_scheduler_job" "recover" {
  project          = var.project
  region           = var.region
  name             = local.names.recover
  description      = "Books a delivery for each orphaned analysis"
  schedule         = "* * * * *"
  time_zone        = "Etc/UTC"
  attempt_deadline = "60s"

  http_target {
    http_method = "POST"
    uri         = "${local.recovery_url}/internal/tasks/recover"

    oidc_token {
      service_account_email = local.account["caller"].email
      audience              = local.recovery_url
    }
  }

  depends_on = [google_cloud_run_v2_service_iam_member.caller, google_cloud_run_v2_service_iam_member.recovery]
}

resource "google_cloud_scheduler_job" "sweep" {
  count = local.doclock ? 1 : 0

  project          = var.project
  region           = var.region
  name             = local.names.sweep
  description      = "Deletes expired document locks"
  schedule         = "* * * * *"
  time_zone        = "Etc/UTC"
  attempt_deadline = "60s"

  http_target {
    http_method = "POST"
    uri         = "${local.doclock_url}/internal/sweep"

    oidc_token {
      service_account_email = local.account["caller"].email
      audience              = local.doclock_url
    }
  }

  depends_on = [google_cloud_run_v2_service.doclock]
}
