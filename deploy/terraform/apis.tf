resource "google_project_service" "api" {
  for_each = toset(concat([
    "artifactregistry",
    "cloudbuild",
    "cloudresourcemanager",
    "cloudscheduler",
    "cloudtasks",
    "firestore",
    "iam",
    "iamcredentials",
    "logging",
    "monitoring",
    "run",
    "secretmanager",
  ], local.otlp_google ? ["cloudtrace", "telemetry"] : []))

  project = var.project
  service = "${each.key}.googleapis.com"
  # Others in the project may use it.
  disable_on_destroy = false
}

# Its number is in the services' URLs.
data "google_project" "this" {
  project_id = var.project
}
