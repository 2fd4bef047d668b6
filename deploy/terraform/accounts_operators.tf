# Operators book deliveries and use the database as submitters do (accounts.tf), and see
# what `taskguard doctor` compares and docs/operations.md examines. They may delete a
# task, which recovery replaces, and change neither queue nor service. Responders may.

locals {
  # These have no narrower resource than the project. With the last one, a person's calls
  # count in this project.
  operator_roles       = ["roles/cloudscheduler.viewer", "roles/logging.viewer", "roles/monitoring.viewer", "roles/serviceusage.serviceUsageConsumer"]
  operator_queue_roles = ["roles/cloudtasks.viewer", "roles/cloudtasks.taskDeleter"]

  services = merge(
    { worker = google_cloud_run_v2_service.worker.name },
    { for s in google_cloud_run_v2_service.doclock : "doclock" => s.name },
    { for s in google_cloud_run_v2_service.recovery : "recovery" => s.name },
  )
}

resource "google_project_iam_member" "operator" {
  for_each = { for pair in setproduct(concat(local.operator_roles, ["operations"]), var.operators) : join(" ", pair) => { role = pair[0], member = pair[1] } }

  project = var.project
  role    = each.value.role == "operations" ? google_project_iam_custom_role.operations.name : each.value.role
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

# What the steps of docs/operations.md need beside that: a change of traffic or of settings
# by release.sh, with its images and its calls; the queue; the jobs and snoozes, which have no
# narrower resource than the project. The predefined roles for queue and jobs also delete them,
# and a deleted queue's name is taken for three days.

resource "google_project_iam_custom_role" "queue_keeper" {
  project     = var.project
  role_id     = "${replace(var.name, "-", "_")}QueueKeeper"
  title       = "${var.name}: pause and limit the queue"
  permissions = ["cloudtasks.queues.get", "cloudtasks.queues.pause", "cloudtasks.queues.resume", "cloudtasks.queues.update"]

  depends_on = [google_project_service.api]
}

resource "google_project_iam_custom_role" "job_keeper" {
  project     = var.project
  role_id     = "${replace(var.name, "-", "_")}JobKeeper"
  title       = "${var.name}: pause and run jobs of Cloud Scheduler"
  permissions = ["cloudscheduler.jobs.enable", "cloudscheduler.jobs.pause", "cloudscheduler.jobs.run"]

  depends_on = [google_project_service.api]
}

resource "google_project_iam_member" "responder" {
  for_each = { for m in var.responders : "monitoring.snoozeEditor ${m}" => m } # as in earlier versions

  project = var.project
  role    = "roles/monitoring.snoozeEditor"
  member  = each.value
}

resource "google_project_iam_member" "job_keeper" {
  for_each = toset(var.responders)

  project = var.project
  role    = google_project_iam_custom_role.job_keeper.name
  member  = each.key
}

resource "google_artifact_registry_repository_iam_member" "responder" {
  for_each = toset(var.responders)

  project    = var.project
  location   = var.region
  repository = var.repository
  role       = "roles/artifactregistry.reader"
  member     = each.key
}

resource "google_cloud_tasks_queue_iam_member" "responder" {
  for_each = toset(var.responders)

  project  = var.project
  location = var.region
  name     = google_cloud_tasks_queue.analyses.name
  role     = google_project_iam_custom_role.queue_keeper.name
  member   = each.key
}

resource "google_cloud_run_v2_service_iam_member" "responder" {
  for_each = { for pair in setproduct(keys(local.services), var.responders) : join(" ", pair) => { service = pair[0], member = pair[1] } }

  project  = var.project
  location = var.region
  name     = local.services[each.value.service]
  role     = "roles/run.developer"
  member   = each.value.member
}

resource "google_service_account_iam_member" "responder_deploys_as" {
  for_each = { for pair in setproduct(local.runners, var.responders) : join(" ", pair) => { account = pair[0], member = pair[1] } }

  service_account_id = local.account[each.value.account].name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value.member
}

resource "google_service_account_iam_member" "responder_calls_as" {
  for_each = toset(var.responders)

  service_account_id = local.account["caller"].name
  role               = "roles/iam.serviceAccountOpenIdTokenCreator"
  member             = each.key
}
