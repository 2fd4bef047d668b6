variable "service_accounts" {
  description = "Service accounts of the project that exist already, by their part: worker, caller, build, test, doclock, backup. The module makes the others, and grants the roles to all. caller must be nobody else's: whoever submits can act as it."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for part, email in var.service_accounts : contains(["worker", "caller", "build", "test", "doclock", "backup"], part) && endswith(email, "@${var.project}.iam.gserviceaccount.com")])
    error_message = "Each is an e-mail address in the project, NAME@PROJECT.iam.gserviceaccount.com, of worker, caller, build, test, doclock or backup."
  }
  validation {
    condition     = length(distinct(values(var.service_accounts))) == length(var.service_accounts)
    error_message = "One account for two parts has the roles of both."
  }
}

variable "max_dispatches_per_second" {
  description = "Deliveries that the queue starts in a second, 500 at most; null: the figure of deploy/queue.yaml. An apply changes it at once."
  type        = number
  default     = null

  validation {
    condition     = var.max_dispatches_per_second == null ? true : var.max_dispatches_per_second > 0 && var.max_dispatches_per_second <= 500
    error_message = "Cloud Tasks starts more than 0 and at most 500 tasks a second."
  }
}

variable "queue_backoff" {
  description = "Waits of the queue after a delivery that was answered with an error: min and max, such as 30s and 600s, and doublings between them; null: the figure of deploy/queue.yaml. An apply changes it at once. A failed run waits for RETRY_MIN to RETRY_MAX instead."
  type        = object({ min = optional(string), max = optional(string), doublings = optional(number) })
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for wait in [var.queue_backoff.min, var.queue_backoff.max] : length(regexall("^[0-9]+(\\.[0-9]+)?s$", wait)) == 1 if wait != null])
    error_message = "A wait is a number of seconds, such as 30s."
  }
}

variable "backup_days" {
  description = "Days that Firestore keeps its daily backup of the database that the module makes, 98 at most; 0: none. A backup survives the database, and stays in its location."
  type        = number
  default     = 7

  validation {
    condition     = var.backup_days >= 0 && var.backup_days <= 98 && floor(var.backup_days) == var.backup_days
    error_message = "Backups are kept for a whole number of days, at most 98."
  }
}

variable "backup_bucket" {
  description = "Existing bucket in another region, for this deployment alone, to which Cloud Scheduler exports the whole database each day, for a read a document. In another project, Firestore's service agent, service-NUMBER@gcp-sa-firestore.iam.gserviceaccount.com, needs roles/storage.admin on it; null: no export."
  type        = string
  default     = null
}
