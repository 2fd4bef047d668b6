# What is calculated. The files settings*.tf and variables*.tf use no provider:
# terraform_test.go evaluates them as a module of their own, with `terraform apply`.

locals {
  doclock = var.session_secret != null

  # Two deployments in one project share none of these names, nor those of the accounts,
  # metrics and alerts. With the default of name they are those of earlier versions: other
  # names would replace the resources.
  names = merge({ for what in ["doclock", "export", "long", "recover", "recovery", "sweep", "worker"] : what => "${var.name}-${what}" }, {
    dashboard        = var.name
    database         = coalesce(var.database, var.name == "taskguard" ? "(default)" : var.name)
    doclock_database = coalesce(var.doclock_database, "${var.name}-doclock")
    queue            = coalesce(var.queue, var.name == "taskguard" ? "analyses" : "${var.name}-analyses")
  })

  # Known before the services exist, whose own environments need them.
  worker_url  = "https://${local.names.worker}-${local.project_number}.${var.region}.run.app"
  doclock_url = "https://${local.names.doclock}-${local.project_number}.${var.region}.run.app"

  # The service that Cloud Scheduler calls for recovery.
  recoverer    = var.recovery_service ? local.names.recovery : local.names.worker
  recovery_url = "https://${local.recoverer}-${local.project_number}.${var.region}.run.app"

  # The request ends with the task's dispatch, whose deadline the worker and `taskguard
  # submit` calculate likewise: a minute after the run, and after 30 minutes at most.
  request_seconds = min(1800, var.run_timeout_minutes * 60 + 60)

  # gcloud's flags: one file for Terraform, gcloud and the tests.
  queue_flags               = yamldecode(file("${path.module}/../queue.yaml"))
  max_concurrent_dispatches = coalesce(var.max_concurrent_dispatches, local.queue_flags["--max-concurrent-dispatches"])
  max_dispatches_per_second = coalesce(var.max_dispatches_per_second, local.queue_flags["--max-dispatches-per-second"])
  min_backoff               = coalesce(var.queue_backoff.min, local.queue_flags["--min-backoff"])
  max_backoff               = coalesce(var.queue_backoff.max, local.queue_flags["--max-backoff"])
  max_doublings             = coalesce(var.queue_backoff.doublings, local.queue_flags["--max-doublings"])

  # The queries' indexes and the fields that must not be indexed: one file for
  # Terraform, Firebase's tool and the tests.
  firestore = jsondecode(file("${path.module}/../firestore.indexes.json"))

  # An index applies to every collection whose path ends with this.
  collection_group = reverse(split("/", var.collection))[0]
}

locals {
  long = var.long_jobs != null
  job  = "job:projects/${var.project}/locations/${var.region}/jobs/${local.names.long}"

  analyzer = local.long ? local.job : coalesce(var.analyzer, var.app == null ? "builtin:document" : "http://localhost:${var.app.port}/analyze")

  worker_env = merge({
    GOOGLE_CLOUD_PROJECT = var.project
    FIRESTORE_DATABASE   = local.names.database
    ANALYSES_COLLECTION  = var.collection
    LOCK_TTL             = "${var.lock_ttl_seconds}s"
    LOCK_HEARTBEAT       = "${var.lock_heartbeat_seconds}s"
    MAX_ATTEMPTS         = tostring(var.max_attempts)
    MAX_RUNS             = tostring(var.max_runs)
    RUN_TIMEOUT          = "${var.run_timeout_minutes}m"
    ANALYZER             = local.analyzer
    ANALYZER_OUTPUT      = var.analyzer_output
    TASK_AUTH            = "iam"
    TASK_QUEUE           = "projects/${var.project}/locations/${var.region}/queues/${local.names.queue}"
    TASK_TARGET_URL      = local.worker_url
    TASK_CALLER          = local.caller
    LOG_FORMAT           = "json" # the log metrics read its fields
  }, local.keep_env, local.otlp_env)

  doclock_env = merge({
    GOOGLE_CLOUD_PROJECT = var.project
    FIRESTORE_DATABASE   = local.names.doclock_database
    SWEEP_INTERVAL       = "0" # Cloud Scheduler calls: without requests a ticker has no CPU
    SESSION_AUTH         = "cookie"
    TASK_AUTH            = var.doclock_invoker_check ? "iam" : "oidc" # Cloud Run's check removes the tokens' signatures
    LOG_FORMAT           = "json"
  }, { for name, value in { TASK_AUDIENCE = local.doclock_url, TASK_SERVICE_ACCOUNTS = local.caller } : name => value if !var.doclock_invoker_check }, local.otlp_env)

  # The topmost version of the changelog: that of the module.
  version = regex("\n## ([0-9]+\\.[0-9]+\\.[0-9]+)", file("${path.module}/../../CHANGELOG.md"))[0]

  # A program gets no other variables of the worker. Not in worker_env: var.worker_env may replace it.
  analyzer_env = { for name, value in {
    ANALYZER_ENV = join(",", [for name in concat(keys(var.worker_env), keys(var.worker_secrets)) : name if !startswith(name, "OTEL_")])
  } : name => value if startswith(local.analyzer, "exec:") && value != "" }

  # The worker's, but for what its runs need. A program gets long_jobs.env too.
  long_env = merge(local.otlp_region, local.worker_env, { for job in var.long_jobs[*] : "ANALYZER_ENV" => join(",", [
    for name in concat(keys(var.worker_env), keys(var.worker_secrets), keys(job.env)) : name if !startswith(name, "OTEL_")
    ]) if startswith(job.analyzer, "exec:") }, var.worker_env, { for name, value in {
    ANALYZER = try(var.long_jobs.analyzer, ""), RUN_TIMEOUT = "${try(var.long_jobs.run_timeout_minutes, 0)}m"
  } : name => value if local.long }, try(var.long_jobs.env, {}))

  # A worker that starts jobs analyzes nothing itself.
  smoke_env = { for name, input in { SMOKE_INPUT = var.smoke_input } : name => input if input != "" && !local.long } # var.worker_env may replace it
  keep_env  = { for name, days in { KEEP_FINISHED = var.keep_finished_days } : name => "${24 * days}h" if days != null }
  otlp_env  = { for name, value in { OTEL_EXPORTER_OTLP_ENDPOINT = var.otlp_endpoint } : name => value if value != null }

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
  ], local.otlp_google ? ["cloudtrace", "telemetry"] : [], length(var.cloud_sql_instances) > 0 ? ["sqladmin"] : [])

  # In the containers that analyze: with app in app's, otherwise in the worker's.
  volumes = merge(
    { for name, v in var.worker_volumes : name => merge(v, { cloud_sql = null }) },
    { for i in slice(["cloudsql"], 0, min(1, length(var.cloud_sql_instances))) : i => {
      path = "/cloudsql", bucket = null, nfs = null, secret = null, secret_version = null, memory = null, read_only = true, cloud_sql = var.cloud_sql_instances
    } },
  )
  # Cloud Run chooses this one itself for some of them, and reports it.
  second_generation = var.worker_gpu != null || length([for v in values(local.volumes) : v if v.bucket != null || v.nfs != null]) > 0
  cpu_idle          = !var.worker_cpu_always && var.worker_gpu == null
  gpu_limits        = { for type in var.worker_gpu[*] : "nvidia.com/gpu" => "1" }

  # Of the container that analyzes.
  analyzing     = var.app == null ? { cpu = var.worker_cpu, memory = var.worker_memory } : { cpu = var.app.cpu, memory = var.app.memory }
  analyzing_cpu = try(tonumber(local.analyzing.cpu), tonumber(trimsuffix(local.analyzing.cpu, "m")) / 1000, 0)
  analyzing_gib = try(tonumber(trimsuffix(local.analyzing.memory, "Gi")), tonumber(trimsuffix(local.analyzing.memory, "Mi")) / 1024, 0)

  # What `taskguard submit`, the other commands and release.sh read, and gcloud's project.
  shell_env = join("\n", concat(
    ["export CLOUDSDK_CORE_PROJECT='${var.project}'", "export CLOUDSDK_RUN_REGION='${var.region}'"],
    [for name in ["GOOGLE_CLOUD_PROJECT", "FIRESTORE_DATABASE", "ANALYSES_COLLECTION", "LOCK_TTL", "RUN_TIMEOUT", "TASK_QUEUE", "TASK_TARGET_URL", "TASK_CALLER"] : "export ${name}='${local.worker_env[name]}'"],
    [for name, value in local.keep_env : "export ${name}='${value}'"],
    # The services that release.sh changes beside the worker; empty, and not what another deployment has set.
    ["export DOCLOCK='${local.doclock ? local.names.doclock : ""}'", "export RECOVERY='${var.recovery_service ? local.names.recovery : ""}'"],
    [for name in [local.names.doclock_database] : "export DOCLOCK_DATABASE='${name}'" if local.doclock],
  ))
}
