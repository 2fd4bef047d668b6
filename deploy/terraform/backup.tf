# Two copies of the database. Firestore's backups stay in its location. The exports can be in
# another region: docs/backup.md restores either.

resource "google_firestore_backup_schedule" "daily" {
  count = var.create_database && var.backup_days > 0 ? 1 : 0

  project   = var.project
  database  = local.database
  retention = "${var.backup_days * 86400}s"
  daily_recurrence {}
}

# Firestore's service agent writes the export, so this account needs no role on the bucket, and in
# another project that agent does (https://cloud.google.com/datastore/docs/export-import-entities).
# The predefined role with this permission can also import, which overwrites documents.
resource "google_project_iam_custom_role" "exporter" {
  count = var.backup_bucket == null ? 0 : 1

  project     = var.project
  role_id     = "${replace(var.name, "-", "_")}Exporter"
  title       = "${var.name}: export the database"
  permissions = ["datastore.databases.export"]

  depends_on = [google_project_service.api]
}

resource "google_project_iam_member" "exporter" {
  count = var.backup_bucket == null ? 0 : 1

  project = var.project
  role    = google_project_iam_custom_role.exporter[0].name
  member  = local.account["backup"].member

  condition {
    title      = "${var.name}'s database"
    expression = "resource.name == \"projects/${var.project}/databases/${local.names.database}\""
  }
}

# Without a folder, each export makes one, named for its time.
resource "google_cloud_scheduler_job" "export" {
  count = var.backup_bucket == null ? 0 : 1

  project          = var.project
  region           = var.region
  name             = local.names.export
  description      = "Exports the database to gs://${var.backup_bucket}"
  schedule         = "0 3 * * *"
  time_zone        = "Etc/UTC"
  attempt_deadline = "60s"

  http_target {
    http_method = "POST"
    uri         = "https://firestore.googleapis.com/v1/projects/${var.project}/databases/${local.names.database}:exportDocuments"
    headers     = { "Content-Type" = "application/json" }
    body        = base64encode(jsonencode({ outputUriPrefix = "gs://${var.backup_bucket}" }))

    oauth_token {
      service_account_email = local.account["backup"].email
      scope                 = "https://www.googleapis.com/auth/datastore"
    }
  }

  # A minute later, and up to five times: the next call is a day away.
  retry_config {
    retry_count          = 5
    min_backoff_duration = "60s"
  }

  depends_on = [google_firestore_database.this, google_project_iam_member.exporter]
}
