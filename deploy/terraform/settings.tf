# What is calculated. The files settings*.tf and variables*.tf use no provider:
# terraform_test.go evaluates them as a module of their own, with `terraform apply`.

locals {
  worker_name  = "taskguard-worker"
  doclock_name = "taskguard-doclock"
  doclock      = var.session_secret != null

  # Known before the services exist, whose own environments need them.
  worker_url  = "https://${local.worker_name}-${local.project_number}.${var.region}.run.app"
  doclock_url = "https://${local.doclock_name}-${local.project_number}.${var.region}.run.app"

  # The request ends with the task's dispatch, whose deadline the worker and `taskguard
  # submit` calculate likewise: a minute after the run, and after 30 minutes at most.
  request_seconds = min(1800, var.run_timeout_minutes * 60 + 60)

  # gcloud's flags: one file for Terraform, gcloud and the tests.
  queue_flags               = yamldecode(file("${path.module}/../queue.yaml"))
  max_concurrent_dispatches = coalesce(var.max_concurrent_dispatches, local.queue_flags["--max-concurrent-dispatches"])

  # The queries' indexes and the fields that must not be indexed: one file for
  # Terraform, Firebase's tool and the tests.
  firestore = jsondecode(file("${path.module}/../firestore.indexes.json"))

  # An index applies to every collection whose path ends with this.
  collection_group = reverse(split("/", var.collection))[0]
}

locals {
  analyzer = coalesce(var.analyzer, var.app == null ? "builtin:document" : "http://localhost:${var.app.port}/analyze")

  worker_env = merge({
    GOOGLE_CLOUD_PROJECT   = var.project
    FIRESTORE_DATABASE     = var.database
    FIRESTORE_TRANSACTIONS = var.firestore_transactions
    ANALYSES_COLLECTION    = var.collection
    LOCK_TTL               = "${var.lock_ttl_seconds}s"
    LOCK_HEARTBEAT         = "${var.lock_heartbeat_seconds}s"
    MAX_ATTEMPTS           = tostring(var.max_attempts)
    MAX_RUNS               = tostring(var.max_runs)
    RUN_TIMEOUT            = "${var.run_timeout_minutes}m"
    ANALYZER               = local.analyzer
    ANALYZER_OUTPUT        = var.analyzer_output
    TASK_AUTH              = "iam"
    TASK_QUEUE             = "projects/${var.project}/locations/${var.region}/queues/${var.queue}"
    TASK_TARGET_URL        = local.worker_url
    TASK_CALLER            = local.caller
    LOG_FORMAT             = "json" # the log metrics read its fields
  }, local.otlp_env)

  doclock_env = merge({
    GOOGLE_CLOUD_PROJECT  = var.project
    FIRESTORE_DATABASE    = var.database
    SWEEP_INTERVAL        = "0" # Cloud Scheduler calls: without requests a ticker has no CPU
    SESSION_AUTH          = "cookie"
    TASK_AUTH             = "oidc"
    TASK_AUDIENCE         = local.doclock_url
    TASK_SERVICE_ACCOUNTS = local.caller
    LOG_FORMAT            = "json"
  }, local.otlp_env)

  otlp_env = { for name, value in { OTEL_EXPORTER_OTLP_ENDPOINT = var.otlp_endpoint } : name => value if value != null }

  # Google's own endpoint, to which the services send as their accounts. It takes no
  # metrics without a region. Not in otlp_env: worker_env and doclock_env may replace it.
  otlp_google = var.otlp_endpoint == null ? false : length(regexall("(?i)^https://telemetry\\.([a-z0-9-]+\\.rep\\.)?googleapis\\.com(:[0-9]+)?(/|$)", var.otlp_endpoint)) == 1
  otlp_region = { for name, value in { OTEL_RESOURCE_ATTRIBUTES = "cloud.region=${var.region}" } : name => value if local.otlp_google }

  apis = concat([
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
  ], local.otlp_google ? ["cloudtrace", "telemetry"] : [])

  # What `taskguard submit` and the other commands read, and gcloud's project.
  shell_env = join("\n", concat(
    ["export CLOUDSDK_CORE_PROJECT='${var.project}'", "export CLOUDSDK_RUN_REGION='${var.region}'"],
    [for name in ["GOOGLE_CLOUD_PROJECT", "FIRESTORE_DATABASE", "ANALYSES_COLLECTION", "LOCK_TTL", "RUN_TIMEOUT", "TASK_QUEUE", "TASK_TARGET_URL", "TASK_CALLER"] : "export ${name}='${local.worker_env[name]}'"],
  ))
}
