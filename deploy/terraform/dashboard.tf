resource "google_monitoring_dashboard" "taskguard" {
  project = var.project

  dashboard_json = jsonencode(local.dashboard)

  depends_on = [google_project_service.api]
}
