variable "project" {
  description = "Project that everything is made in."
  type        = string
}

variable "name" {
  description = "Prefix of every name that the module gives, so that several deployments live in one project. Anything but the default changes the defaults of database and queue."
  type        = string
  default     = "taskguard"

  validation {
    condition     = length(regexall("^[a-z][a-z0-9-]{2,20}[a-z0-9]$", var.name)) == 1
    error_message = "The name is 4 to 22 lower-case letters, digits and hyphens: an account's name has 30 at most."
  }
}

variable "region" {
  description = "Region of the services, the queue and the Scheduler jobs."
  type        = string
  default     = "europe-west1"
}

variable "worker_image" {
  description = "The worker's image by digest, for the first deployment alone: later ones are the build's, and the output worker_image has the present one."
  type        = string

  validation {
    condition     = length(regexall("@sha256:[0-9a-f]{64}$", var.worker_image)) == 1
    error_message = "A tag can move under a running service: name the image by its digest, NAME@sha256:…."
  }
}

variable "doclock_image" {
  description = "The document lock's image by digest, for the first deployment; needed with session_secret."
  type        = string
  default     = null

  validation {
    condition     = var.doclock_image == null ? var.session_secret == null : length(regexall("@sha256:[0-9a-f]{64}$", var.doclock_image)) == 1
    error_message = "session_secret needs doclock_image, and an image is named by its digest, NAME@sha256:…."
  }
}

variable "repository" {
  description = "Artifact Registry repository of the images, in the same region. It exists already: the images must come first."
  type        = string
  default     = "taskguard"
}

variable "create_database" {
  description = "Whether to make the Firestore database; false where there is one, as after a destroy. create_indexes is for its indexes."
  type        = bool
  default     = true
}

variable "create_indexes" {
  description = "Whether to make the collection's indexes, exemptions and TTL policy; false where another deployment on the same collection, or Firebase, has made them: Google refuses a second one."
  type        = bool
  default     = true

  validation {
    condition     = var.create_indexes || !var.create_database
    error_message = "A new database has no indexes: create_indexes stays true with create_database."
  }
}

variable "database" {
  description = "Firestore database of the analyses; null: (default), or name if that is not taskguard."
  type        = string
  default     = null
}

variable "database_location" {
  description = "Where a new database's data lives, such as eur3; null: in the region."
  type        = string
  default     = null
}

variable "database_kms_key" {
  description = "Key of Cloud KMS in full, in the databases' location (in Cloud KMS eur3 is europe, and nam5 is us), which encrypts the databases that the module makes, not existing ones. Firestore's service agent may use it already: `gcloud beta services identity create --service=firestore.googleapis.com` makes service-NUMBER@gcp-sa-firestore.iam.gserviceaccount.com, which needs roles/cloudkms.cryptoKeyEncrypterDecrypter."
  type        = string
  default     = null
}

variable "delete_database" {
  description = "Whether `terraform destroy` deletes the database that the module made, with all analyses, once an apply has set this."
  type        = bool
  default     = false
}

variable "collection" {
  description = "Collection of the analyses."
  type        = string
  default     = "analyses"
}

variable "keep_finished_days" {
  description = "KEEP_FINISHED: days after which Firestore deletes a finished analysis, by a TTL policy on expireAt for the whole collection group; null: never, and no policy. There is no default: without a decision the database grows for ever, and a deletion is for ever too."
  type        = number

  validation {
    condition     = var.keep_finished_days == null ? true : var.keep_finished_days >= 32 && floor(var.keep_finished_days) == var.keep_finished_days
    error_message = "The days are a whole number, at least 32: Cloud Tasks may deliver a task for 31 days."
  }
}

variable "queue" {
  description = "Short name of the queue; null: analyses, or NAME-analyses if name is not taskguard. A deleted queue's name is taken for three days."
  type        = string
  default     = null

  validation {
    condition     = var.queue == null ? true : length(regexall("^[A-Za-z0-9-]{1,100}$", var.queue)) == 1
    error_message = "A queue's name is 1 to 100 letters, digits and hyphens."
  }
}

variable "max_concurrent_dispatches" {
  description = "Deliveries under way at once; null: the figure of deploy/queue.yaml."
  type        = number
  default     = null

  validation {
    condition     = coalesce(var.max_concurrent_dispatches, local.queue_flags["--max-concurrent-dispatches"]) < var.worker_max_instances * var.worker_concurrency
    error_message = "Fewer dispatches at once than worker_max_instances × worker_concurrency: recovery's own call needs a place, and Cloud Run answers further tasks with 429, which slows the whole queue."
  }
}

variable "submitters" {
  description = "Who creates documents and tasks, such as serviceAccount:api@my-project.iam.gserviceaccount.com."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for m in var.submitters : length(regexall("^(serviceAccount|user|group|principal|principalSet):", m)) == 1])
    error_message = "Each is a member with its kind, such as serviceAccount:NAME@PROJECT.iam.gserviceaccount.com."
  }
}

variable "operators" {
  description = "Who works with the taskguard commands, such as group:oncall@example.com: reads and changes analyses, books deliveries, deletes tasks, and sees logs, dashboard and what doctor compares."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for m in var.operators : length(regexall("^(serviceAccount|user|group|principal|principalSet):", m)) == 1])
    error_message = "Each is a member with its kind, such as group:NAME@example.com."
  }
}

variable "responders" {
  description = "Who is called at night, such as group:oncall@example.com: beside what operators may, shifts traffic, releases settings, pauses and resumes the queue and the jobs, and snoozes alerts."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for m in var.responders : contains(var.operators, m)])
    error_message = "A responder is an operator too: add the member to operators."
  }
}

variable "build_source_bucket" {
  description = "Bucket that `gcloud builds submit` puts the source into, such as my-project-taskguard-build, which exists already; null: triggers alone build."
  type        = string
  default     = null
}

variable "notification_channels" {
  description = "Channels that alerts go to, as projects/PROJECT/notificationChannels/ID."
  type        = list(string)
  default     = []
}

variable "notification_channels_by_severity" {
  description = "Channels of the alerts of a severity, CRITICAL, ERROR or WARNING, instead of notification_channels. docs/operations.md says who acts on each."
  type        = map(list(string))
  default     = {}

  validation {
    condition     = length(setsubtract(keys(var.notification_channels_by_severity), ["CRITICAL", "ERROR", "WARNING"])) == 0
    error_message = "The severities of the alerts are CRITICAL, ERROR and WARNING."
  }
}

variable "renotify_minutes" {
  description = "Minutes after which an alert that is still open notifies again; null: it does not."
  type        = number
  default     = null

  validation {
    condition     = var.renotify_minutes == null ? true : var.renotify_minutes >= 30 && var.renotify_minutes <= 1440
    error_message = "An alert notifies again after 30 to 1440 minutes."
  }
}

variable "alert_overrides" {
  description = "Changes of alerts, by the name in docs/operations.md without its prefix, such as \"runs time out\": another threshold, in the unit that the alert's condition names, or disabled."
  type        = map(object({ threshold = optional(number), disabled = optional(bool, false) }))
  default     = {}

  validation {
    condition     = alltrue([for name in keys(var.alert_overrides) : contains(keys(local.usual_thresholds), name)])
    error_message = "An alert has another name: see the runbook in docs/operations.md, and leave out the prefix."
  }
  validation {
    condition     = alltrue([for name, o in var.alert_overrides : o.threshold == null ? true : try(local.usual_thresholds[name] != null, true) && o.threshold >= 0])
    error_message = "A threshold is not negative. Four are variables of their own: start_percent, answer_percent, oldest_minutes and backlog_tasks. The export's 26 hours are fixed."
  }
  validation {
    condition     = alltrue([for name in ["tasks are not sent", "tasks do not arrive", "tasks wait"] : try(var.alert_overrides[name].threshold >= 1 && floor(var.alert_overrides[name].threshold) == var.alert_overrides[name].threshold, true)])
    error_message = "A threshold in minutes is a whole number, at least 1."
  }
}

variable "queue_log_ratio" {
  description = "Share of the queue's operations that Cloud Tasks logs, from 0 to 1: each attempt with its status, also what never reaches the worker; null: as the queue has it, none in a new one."
  type        = number
  default     = null

  validation {
    condition     = var.queue_log_ratio == null ? true : var.queue_log_ratio >= 0 && var.queue_log_ratio <= 1
    error_message = "The share is from 0 to 1."
  }
}

variable "backlog_tasks" {
  description = "Tasks in the queue from which on a backlog that still grows is an alert."
  type        = number
  default     = 1000
}

variable "start_seconds" {
  description = "Time from creation within which an analysis is to start, for the objective of start_percent."
  type        = number
  default     = 300

  validation {
    condition     = var.start_seconds >= 1 && floor(var.start_seconds) == var.start_seconds
    error_message = "The time is a whole number of seconds, at least 1."
  }
}

variable "start_percent" {
  description = "Objective: percentage of analyses that start within start_seconds."
  type        = number
  default     = 95

  validation {
    condition     = var.start_percent >= 94 && var.start_percent < 100
    error_message = "The objective is 94 to below 100: below, no share of late starts is 14.4 times what it allows."
  }
}

variable "answer_percent" {
  description = "Objective: percentage of deliveries that the worker answers without an error."
  type        = number
  default     = 99

  validation {
    condition     = var.answer_percent >= 94 && var.answer_percent < 100
    error_message = "The objective is 94 to below 100: below, no share of errors is 14.4 times what it allows."
  }
}

variable "oldest_minutes" {
  description = "Age of the oldest unfinished analysis that is an alert. Runs that continue from checkpoints may need longer."
  type        = number
  default     = 120

  validation {
    condition     = var.oldest_minutes > 0
    error_message = "The age is a positive number of minutes."
  }
}

variable "otlp_endpoint" {
  description = "Base URL that takes OTLP over HTTP: https://telemetry.googleapis.com, a vendor's or a collector's; null: no traces and metrics are sent. Known when it is planned: roles and APIs depend on it."
  type        = string
  default     = null

  validation {
    condition     = var.otlp_endpoint == null ? true : length(regexall("^https?://", var.otlp_endpoint)) == 1
    error_message = "The endpoint is an http or https URL."
  }
}
