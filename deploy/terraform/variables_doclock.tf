variable "session_secret" {
  description = "Name of an existing Secret Manager secret that signs the document lock's sessions; null: no document lock."
  type        = string
  default     = null
}

variable "session_secret_version" {
  description = "Version of session_secret; latest is read by each instance as it starts."
  type        = string
  default     = "latest"
}

variable "pusher_secret" {
  description = "Name of an existing Secret Manager secret, PUSHER_APP_SECRET, for clients of Laravel Echo; PUSHER_APP_KEY is set in doclock_env."
  type        = string
  default     = null
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

variable "doclock_max_instances" {
  description = "Most instances of the document lock."
  type        = number
  default     = 10
}
