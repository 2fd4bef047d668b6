output "worker_url" {
  description = "The worker's URL: TASK_TARGET_URL and the audience of its tasks."
  value       = local.worker_url
}

output "doclock_url" {
  description = "The document lock's URL; null without session_secret."
  value       = local.doclock ? local.doclock_url : null
}

output "queue" {
  description = "The queue's full name: TASK_QUEUE."
  value       = google_cloud_tasks_queue.analyses.id
}

output "caller" {
  description = "Account that tasks are signed as: TASK_CALLER."
  value       = local.account["caller"].email
}

output "build_account" {
  description = "Account for the build's trigger."
  value       = local.account["build"].email
}

output "accounts" {
  description = "The accounts' e-mail addresses, by their part: worker, caller, build, test, doclock, backup."
  value       = { for part in keys(local.parts) : part => local.account[part].email }
}

output "names" {
  description = "The names of the services, jobs, queue, databases and dashboard, by their part."
  value       = local.names
}

output "serving_revisions" {
  description = "The worker's revisions with traffic and their percentages, as of the last apply or refresh."
  value       = { for t in google_cloud_run_v2_service.worker.traffic_statuses : coalesce(t.revision, "latest") => t.percent if try(t.percent > 0, false) }
}

output "worker_image" {
  description = "The image in the worker's template, as of the last apply or refresh: what to set as worker_image before the service is made anew. It is the last release's image, or after a roll-back the image that its last step has put back."
  value       = google_cloud_run_v2_service.worker.template[0].containers[0].image
}

output "version" {
  description = "The module's version, as CHANGELOG.md has it."
  value       = local.version
}

output "environment" {
  description = "What `taskguard submit`, `requeue`, `recover` and the other commands read, the project of gcloud's, and the services that release.sh changes, as lines for a shell; `taskguard doctor --service NAME-worker` finds the service by it."
  value       = local.shell_env
}

output "dashboard" {
  description = "The dashboard in the console."
  value       = "https://console.cloud.google.com/monitoring/dashboards/builder/${reverse(split("/", google_monitoring_dashboard.taskguard.id))[0]}?project=${var.project}"
}
