variable "session_secret" {
  description = "Name of an existing Secret Manager secret that signs the document lock's sessions; null: no document lock."
  type        = string
  default     = null
}

variable "session_secret_version" {
  description = "Version of session_secret, a number; needed with session_secret. docs/operations.md changes it."
  type        = string
  default     = null

  validation {
    condition     = var.session_secret == null ? true : length(regexall("^[1-9][0-9]*$", coalesce(var.session_secret_version, "none"))) == 1
    error_message = "session_secret needs session_secret_version, a number: with latest, instances that start later have another secret than the others, and no release has tested it."
  }
}

variable "pusher_secret" {
  description = "Name of an existing Secret Manager secret, PUSHER_APP_SECRET, for clients of Laravel Echo; PUSHER_APP_KEY is set in doclock_env."
  type        = string
  default     = null
}

variable "pusher_secret_version" {
  description = "Version of pusher_secret, a number; needed with pusher_secret."
  type        = string
  default     = null

  validation {
    condition     = var.pusher_secret == null ? true : length(regexall("^[1-9][0-9]*$", coalesce(var.pusher_secret_version, "none"))) == 1
    error_message = "pusher_secret needs pusher_secret_version, a number."
  }
}

variable "doclock_database" {
  description = "Existing Firestore database of the document lock; null: the module makes NAME-doclock, so that the document lock has no access to the analyses. Operators have access to it, submitters do not."
  type        = string
  default     = null
}

variable "doclock_env" {
  description = "More of the document lock's environment, such as LOG_LEVEL, PUSHER_APP_KEY and ALLOWED_ORIGINS. No secrets: they would be in Terraform's state."
  type        = map(string)
  default     = {}

  validation {
    condition     = length(setintersection(keys(var.doclock_env), keys(local.doclock_env))) == 0
    error_message = "The module sets this variable itself."
  }
}

variable "doclock_ingress" {
  description = "Where calls of the document lock may come from; with INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER also your load balancer. A release needs a private pool then."
  type        = string
  default     = "INGRESS_TRAFFIC_ALL"
}

variable "doclock_vpc" {
  description = "Direct egress of the document lock into a VPC, as worker_vpc; null: none."
  type = object({
    network    = optional(string)
    subnetwork = optional(string)
    tags       = optional(list(string))
    egress     = optional(string, "PRIVATE_RANGES_ONLY")
  })
  default = null
}

variable "doclock_invoker_check" {
  description = "Whether Cloud Run checks callers of the document lock, for organizations that forbid public services. Browsers then need a proxy that has run.invoker, such as Identity-Aware Proxy; TASK_AUTH is iam."
  type        = bool
  default     = false
}

variable "doclock_max_instances" {
  description = "Most instances of the document lock."
  type        = number
  default     = 10
}
