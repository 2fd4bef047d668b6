# The build pushes images and deploys them to the services, acting as their accounts,
# and calls the new revision before it gets traffic.

resource "google_artifact_registry_repository_iam_member" "build" {
  project    = var.project
  location   = var.region
  repository = var.repository
  role       = "roles/artifactregistry.writer"
  member     = local.account["build"].member
}

# The source that `gcloud builds submit` uploads.
resource "google_storage_bucket_iam_member" "build" {
  count = var.build_source_bucket == null ? 0 : 1

  bucket = var.build_source_bucket
  role   = "roles/storage.objectViewer"
  member = local.account["build"].member
}

# Logs, and the errors of a share of the traffic, have no narrower resource than the project.
resource "google_project_iam_member" "build_logs" {
  for_each = toset(["roles/logging.logWriter", "roles/monitoring.viewer"])

  project = var.project
  role    = each.key
  member  = local.account["build"].member
}

# An earlier version had one role.
moved {
  from = google_project_iam_member.build_logs
  to   = google_project_iam_member.build_logs["roles/logging.logWriter"]
}

# To wait for a service's change, gcloud reads an operation, which belongs to the project,
# as do the revisions that doctor and release.sh read, and the executions of long_jobs. Operators
# also see whether there are copies of the database, and doctor compares roles.
# The predefined roles with these permissions can also read every service, or every role.
resource "google_project_iam_custom_role" "operations" {
  project = var.project
  role_id = "${replace(var.name, "-", "_")}Operations"
  title   = "${var.name}: wait for changes, and see revisions, copies and roles"
  permissions = [
    "run.executions.get", "run.executions.list", "run.operations.get", "run.revisions.get", "run.revisions.list",
    "datastore.backups.list", "datastore.operations.get", "datastore.operations.list",
    "cloudtasks.queues.getIamPolicy", "iam.roles.get", "iam.serviceAccounts.getIamPolicy", "resourcemanager.projects.getIamPolicy",
  ]

  depends_on = [google_project_service.api]
}

resource "google_project_iam_member" "build_waits" {
  project = var.project
  role    = google_project_iam_custom_role.operations.name
  member  = local.account["build"].member
}

resource "google_cloud_run_v2_service_iam_member" "build" {
  for_each = local.services

  project  = var.project
  location = var.region
  name     = each.value
  role     = "roles/run.developer"
  member   = local.account["build"].member
}

resource "google_service_account_iam_member" "build_deploys_as" {
  for_each = toset(local.runners)

  service_account_id = local.account[each.key].name
  role               = "roles/iam.serviceAccountUser"
  member             = local.account["build"].member
}

# An ID token of the caller, for the smoke test; no access token.
resource "google_service_account_iam_member" "build_calls_as" {
  service_account_id = local.account["caller"].name
  role               = "roles/iam.serviceAccountOpenIdTokenCreator"
  member             = local.account["build"].member
}

# The tests: nothing but the source and the logs.
resource "google_storage_bucket_iam_member" "test" {
  count = var.build_source_bucket == null ? 0 : 1

  bucket = var.build_source_bucket
  role   = "roles/storage.objectViewer"
  member = local.account["test"].member
}

resource "google_project_iam_member" "test_logs" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = local.account["test"].member
}
