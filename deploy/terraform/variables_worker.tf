variable "analyzer" {
  description = "ANALYZER of the worker: builtin:document, exec:PROGRAM ARG…, http://… or https://…; null: /analyze of app, and builtin:document without one."
  type        = string
  default     = null
}

variable "analyzer_output" {
  description = "ANALYZER_OUTPUT: json retries an attempt whose output is not JSON; any stores such output as text."
  type        = string
  default     = "json"

  validation {
    condition     = length(regexall("^(any|json)$", var.analyzer_output)) == 1
    error_message = "The analyzer's output is any or json."
  }
}

variable "run_timeout_minutes" {
  description = "RUN_TIMEOUT, the deadline of one run. The request and the task's dispatch get a minute more, and a dispatch ends after 30."
  type        = number
  default     = 25

  validation {
    condition     = var.run_timeout_minutes > 0 && var.run_timeout_minutes <= 29
    error_message = "Cloud Tasks ends a dispatch after 30 minutes, so a run can have 29 at most."
  }
}

variable "lock_ttl_seconds" {
  description = "LOCK_TTL, how long a lock outlives its holder."
  type        = number
  default     = 300

  validation {
    condition     = var.lock_ttl_seconds >= 2 * var.lock_heartbeat_seconds + var.lock_ttl_seconds / 10
    error_message = "The TTL is at least two heartbeats and a tenth of itself, or the worker refuses to start."
  }
  validation {
    condition     = var.lock_ttl_seconds <= 43200
    error_message = "The TTL is at most 12 hours."
  }
}

variable "lock_heartbeat_seconds" {
  description = "LOCK_HEARTBEAT, how often a lock is renewed."
  type        = number
  default     = 100

  validation {
    condition     = var.lock_heartbeat_seconds > 0
    error_message = "The heartbeat is a positive number of seconds."
  }
}

variable "max_attempts" {
  description = "MAX_ATTEMPTS, runs before an analysis that keeps failing or crashing is FAILED."
  type        = number
  default     = 10

  validation {
    condition     = var.max_attempts >= 1 && floor(var.max_attempts) == var.max_attempts
    error_message = "The attempts are a whole number, at least 1."
  }
}

variable "max_runs" {
  description = "MAX_RUNS, deliveries that one worker instance handles at once; it answers one more with 409."
  type        = number
  default     = 100

  validation {
    condition     = var.max_runs >= 1 && floor(var.max_runs) == var.max_runs
    error_message = "The runs are a whole number, at least 1."
  }
  validation {
    condition     = var.max_runs >= var.worker_concurrency
    error_message = "Cloud Run would send more deliveries than the worker takes: max_runs is at least worker_concurrency."
  }
}

variable "smoke_input" {
  description = "SMOKE_INPUT: a small input of the analyzer, as JSON. A release runs the analyzer on it, without a document, before any traffic; empty: it does not. It must not lead to an act, such as a charge."
  type        = string
  default     = "{\"text\":\"a test\"}"
}

variable "worker_env" {
  description = "More of the worker's environment, such as LOG_LEVEL or what the analyzer reads. A program, exec:, gets these and worker_secrets, without OTEL_…, unless ANALYZER_ENV is one of them. No secrets: they would be in Terraform's state."
  type        = map(string)
  default     = {}

  validation {
    condition     = length(setintersection(keys(var.worker_env), concat(keys(local.worker_env), ["KEEP_FINISHED"]))) == 0
    error_message = "The module sets this variable itself, from its own variable."
  }
  validation {
    condition     = length(setintersection(keys(var.worker_env), ["PORT", "TASK_AUDIENCE", "TASK_SERVICE_ACCOUNTS", "TASK_JWKS_URL", "FIRESTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST"])) == 0
    error_message = "Not in production: PORT is Cloud Run's, the emulators' and TASK_JWKS_URL are for tests, and the others belong to TASK_AUTH=oidc."
  }
  validation {
    condition     = length(regexall("(?i)^(debug|info)?$", lookup(var.worker_env, "LOG_LEVEL", ""))) == 1
    error_message = "Dashboard and alerts are made of lines of level info: LOG_LEVEL is info or debug."
  }
}

variable "worker_secrets" {
  description = "Secrets of Secret Manager in the worker's environment, by the variable's name; the worker alone is allowed to read them. The version is a number, so that a release tests what changes; docs/operations.md changes it."
  type        = map(object({ secret = string, version = string }))
  default     = {}

  validation {
    condition     = alltrue([for s in values(var.worker_secrets) : length(regexall("^[1-9][0-9]*$", s.version)) == 1])
    error_message = "A secret's version is a number: with latest, instances that start later have another secret than the others."
  }

  validation {
    condition     = length(setintersection(keys(var.worker_secrets), concat(keys(local.worker_env), keys(var.worker_env)))) == 0
    error_message = "This variable has a plain value already, from the module or from worker_env."
  }
}

variable "worker_ingress" {
  description = "Where calls of the worker may come from. Cloud Tasks and Cloud Scheduler of the project count as internal, and Cloud Build's smoke test only from a private pool (deploy/build.md)."
  type        = string
  default     = "INGRESS_TRAFFIC_ALL"

  validation {
    condition     = length(regexall("^INGRESS_TRAFFIC_(ALL|INTERNAL_ONLY)$", var.worker_ingress)) == 1
    error_message = "Ingress is INGRESS_TRAFFIC_ALL or INGRESS_TRAFFIC_INTERNAL_ONLY."
  }
}

variable "worker_max_instances" {
  description = "Most instances of the worker, of all its revisions. An apply changes it at once, as max_concurrent_dispatches."
  type        = number
  default     = 10
}

variable "worker_min_instances" {
  description = "Instances of the worker that stay when there is nothing to do. An apply changes it at once."
  type        = number
  default     = 0

  validation {
    condition     = var.worker_min_instances <= var.worker_max_instances
    error_message = "There cannot be more idle instances than instances."
  }
}

variable "worker_concurrency" {
  description = "Runs of one worker instance at once."
  type        = number
  default     = 10
}

variable "worker_cpu" {
  description = "CPUs of one worker instance, the analyzer's included unless it is app."
  type        = string
  default     = "1"
}

variable "worker_memory" {
  description = "Memory of one worker instance, the analyzer's included unless it is app: 200 MiB and 50 MiB a delivery of worker_concurrency hold the largest documents."
  type        = string
  default     = "1Gi"
}
