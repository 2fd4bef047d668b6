locals {
  parts = { for part, what in {
    worker  = "Runs ${var.name}-worker"
    caller  = "Cloud Tasks and Cloud Scheduler call the services as this"
    build   = "Builds and deploys the services"
    test    = "Tests commits, and cannot deploy"
    doclock = "Runs ${var.name}-doclock"
    backup  = "Cloud Scheduler exports the database as this"
  } : part => what if part == "doclock" ? local.doclock : part == "backup" ? var.backup_bucket != null : true }

  account = merge(
    { for part, a in google_service_account.this : part => { email = a.email, member = a.member, name = a.name } },
    { for part, email in var.service_accounts : part => {
      email = email, member = "serviceAccount:${email}", name = "projects/${var.project}/serviceAccounts/${email}"
    } },
  )

  # The accounts that the services run as.
  runners = [for part in ["worker", "doclock"] : part if local.doclock || part != "doclock"]

  # The document lock, which the public reaches, has no access to the analyses, unless
  # doclock_database names their database.
  database_users = merge(
    { for name, member in merge({ worker = local.account["worker"].member }, local.bookers) : name => { member = member, database = local.names.database } },
    { for part in ["doclock"] : part => { member = local.account["doclock"].member, database = local.names.doclock_database } if local.doclock },
    { for m in var.operators : "doclock ${m}" => { member = m, database = local.names.doclock_database } if local.doclock && local.names.doclock_database != local.names.database },
  )

  # They book deliveries, as the worker does.
  bookers = { for m in setunion(var.submitters, var.operators) : m => m }
}

resource "google_service_account" "this" {
  for_each = { for part, what in local.parts : part => what if !contains(keys(var.service_accounts), part) }

  project      = var.project
  account_id   = "${var.name}-${each.key}"
  display_name = "${var.name}-${each.key}"
  description  = each.value

  depends_on = [google_project_service.api]
}

# The databases: for the services' accounts, for submitters (who create documents before
# their tasks), and for operators.

resource "google_project_iam_member" "database" {
  for_each = local.database_users

  project = var.project
  role    = "roles/datastore.user"
  member  = each.value.member

  # The role applies to the project; the condition limits it to one database.
  condition {
    title      = "${var.name}'s database"
    expression = "resource.name == \"projects/${var.project}/databases/${each.value.database}\""
  }
}

# Who creates tasks names the account that signs them, and needs to act as it.

resource "google_cloud_tasks_queue_iam_member" "enqueuer" {
  for_each = merge({ worker = local.account["worker"].member }, local.bookers)

  project  = var.project
  location = var.region
  name     = google_cloud_tasks_queue.analyses.name
  role     = "roles/cloudtasks.enqueuer"
  member   = each.value
}

# Recovery asks the queue whether it still has a task, before it books another. Operators can
# do that too (accounts_operators.tf). The predefined role with this permission can also list
# and read all tasks.

resource "google_project_iam_custom_role" "task_finder" {
  project     = var.project
  role_id     = "${replace(var.name, "-", "_")}TaskFinder"
  title       = "${var.name}: find a booked task"
  permissions = ["cloudtasks.tasks.get"]

  depends_on = [google_project_service.api]
}

resource "google_cloud_tasks_queue_iam_member" "task_finder" {
  project  = var.project
  location = var.region
  name     = google_cloud_tasks_queue.analyses.name
  role     = google_project_iam_custom_role.task_finder.name
  member   = local.account["worker"].member
}

resource "google_service_account_iam_member" "signs_as_caller" {
  for_each = merge({ worker = local.account["worker"].member }, local.bookers)

  service_account_id = local.account["caller"].name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}

resource "google_cloud_run_v2_service_iam_member" "caller" {
  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.worker.name
  role     = "roles/run.invoker"
  member   = local.account["caller"].member
}

resource "google_cloud_run_v2_service_iam_member" "sweep" {
  count = local.doclock && var.doclock_invoker_check ? 1 : 0

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.doclock[0].name
  role     = "roles/run.invoker"
  member   = local.account["caller"].member
}

resource "google_secret_manager_secret_iam_member" "session" {
  count = local.doclock ? 1 : 0

  project   = var.project
  secret_id = var.session_secret
  role      = "roles/secretmanager.secretAccessor"
  member    = local.account["doclock"].member
}

resource "google_secret_manager_secret_iam_member" "pusher" {
  count = local.doclock && var.pusher_secret != null ? 1 : 0

  project   = var.project
  secret_id = var.pusher_secret
  role      = "roles/secretmanager.secretAccessor"
  member    = local.account["doclock"].member
}

resource "google_secret_manager_secret_iam_member" "worker" {
  for_each = toset([for s in concat(values(var.worker_secrets), var.app == null ? [] : values(var.app.secrets), values(var.worker_volumes)) : s.secret if s.secret != null])

  project   = var.project
  secret_id = each.key
  role      = "roles/secretmanager.secretAccessor"
  member    = local.account["worker"].member
}

resource "google_storage_bucket_iam_member" "volume" {
  for_each = { for name, v in var.worker_volumes : name => v if v.bucket != null }

  bucket = each.value.bucket
  role   = each.value.read_only ? "roles/storage.objectViewer" : "roles/storage.objectUser"
  member = local.account["worker"].member
}

resource "google_project_iam_member" "cloud_sql" {
  for_each = toset(var.cloud_sql_instances)

  project = split(":", each.key)[0]
  role    = "roles/cloudsql.client"
  member  = local.account["worker"].member

  condition {
    title      = "${var.name}'s instance"
    expression = "resource.service == \"sqladmin.googleapis.com\" && resource.name == \"projects/${split(":", each.key)[0]}/instances/${split(":", each.key)[2]}\""
  }
}

# Google's own endpoint for telemetry. The document lock sends no metrics.

resource "google_project_iam_member" "telemetry" {
  for_each = { for pair in [
    ["worker", "telemetry.tracesWriter"], ["worker", "telemetry.metricsWriter"], ["worker", "serviceusage.serviceUsageConsumer"],
    ["doclock", "telemetry.tracesWriter"], ["doclock", "serviceusage.serviceUsageConsumer"],
  ] : join(" ", pair) => { account = pair[0], role = pair[1] } if local.otlp_google && (local.doclock || pair[0] != "doclock") }

  project = var.project
  role    = "roles/${each.value.role}"
  member  = local.account[each.value.account].member
}
