# Who operates books deliveries and reads the database as who submits does
# (accounts.tf), and sees what `taskguard doctor` compares. Nothing here changes the
# queue or a service: that is Terraform's.

locals {
  # These have no narrower resource than the project. The second reads who may do
  # what; the third is for a person's calls to be counted in this project.
  operator_roles = ["roles/cloudscheduler.viewer", "roles/iam.securityReviewer", "roles/serviceusage.serviceUsageConsumer"]

  services = merge(
    { worker = google_cloud_run_v2_service.worker.name },
    { for s in google_cloud_run_v2_service.doclock : "doclock" => s.name },
  )
}

resource "google_project_iam_member" "operator" {
  for_each = { for pair in setproduct(local.operator_roles, var.operators) : join(" ", pair) => { role = pair[0], member = pair[1] } }

  project = var.project
  role    = each.value.role
  member  = each.value.member
}

resource "google_cloud_tasks_queue_iam_member" "viewer" {
  for_each = toset(var.operators)

  project  = var.project
  location = var.region
  name     = google_cloud_tasks_queue.analyses.name
  role     = "roles/cloudtasks.viewer"
  member   = each.key
}

resource "google_cloud_run_v2_service_iam_member" "viewer" {
  for_each = { for pair in setproduct(keys(local.services), var.operators) : join(" ", pair) => { service = pair[0], member = pair[1] } }

  project  = var.project
  location = var.region
  name     = local.services[each.value.service]
  role     = "roles/run.viewer"
  member   = each.value.member
}
