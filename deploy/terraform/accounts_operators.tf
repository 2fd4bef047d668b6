# Operators book deliveries and use the database as submitters do (accounts.tf), and see
# what `taskguard doctor` compares and docs/operations.md examines. They may delete a
# task, which recovery replaces, and change neither queue nor service: the runbook names
# who may.

locals {
  # These have no narrower resource than the project. With the last one, a person's calls
  # count in this project.
  operator_roles       = ["roles/cloudscheduler.viewer", "roles/logging.viewer", "roles/monitoring.viewer", "roles/serviceusage.serviceUsageConsumer"]
  operator_queue_roles = ["roles/cloudtasks.viewer", "roles/cloudtasks.taskDeleter"]

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

resource "google_cloud_tasks_queue_iam_member" "operator" {
  for_each = { for pair in setproduct(local.operator_queue_roles, var.operators) : join(" ", pair) => { role = pair[0], member = pair[1] } }

  project  = var.project
  location = var.region
  name     = google_cloud_tasks_queue.analyses.name
  role     = each.value.role
  member   = each.value.member
}

resource "google_cloud_run_v2_service_iam_member" "viewer" {
  for_each = { for pair in setproduct(keys(local.services), var.operators) : join(" ", pair) => { service = pair[0], member = pair[1] } }

  project  = var.project
  location = var.region
  name     = local.services[each.value.service]
  role     = "roles/run.viewer"
  member   = each.value.member
}
