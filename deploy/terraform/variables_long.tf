variable "long_jobs" {
  description = "Runs longer than a delivery: a Cloud Run job, of which the worker starts an execution for each analysis (docs/long.md). Its image by digest, whose entrypoint is taskguard and which has the program of the analyzer; ANALYZER of the job; RUN_TIMEOUT in minutes, at most a day less five minutes; CPUs, memory, and more environment than worker_env and worker_secrets. app and analyzer stay null; null: the worker runs the analyses itself."
  type = object({
    image               = string
    analyzer            = string
    run_timeout_minutes = optional(number, 180)
    cpu                 = optional(string, "1")
    memory              = optional(string, "1Gi")
    env                 = optional(map(string), {})
  })
  default = null

  validation {
    condition     = var.long_jobs == null ? true : length(regexall("@sha256:[0-9a-f]{64}$", var.long_jobs.image)) == 1
    error_message = "The job's image is named by its digest, NAME@sha256:…."
  }
  validation {
    condition     = var.long_jobs == null ? true : var.long_jobs.run_timeout_minutes > 0 && var.long_jobs.run_timeout_minutes <= 1435
    error_message = "A run of a job takes at most 1435 minutes: MAX_RUN_TIME is a day."
  }
  validation {
    condition     = var.long_jobs == null ? true : var.app == null && var.analyzer == null
    error_message = "long_jobs has its own analyzer: leave app and analyzer null."
  }
}
