variable "app" {
  description = "An application in another language beside the worker, in the same instance, which POST /analyze on localhost reaches: its image by digest, port, environment, secrets as in worker_secrets, CPUs, memory, the path that answers 200 once it is ready, the seconds that this may take, and whether a container that does not answer it for 90 seconds is killed with all of its runs, as one whose analysis keeps its only thread busy would be. Its image is for the first deployment: later ones are the build's; null: no application."
  type = object({
    image           = string
    port            = optional(number, 9000)
    env             = optional(map(string), {})
    secrets         = optional(map(object({ secret = string, version = string })), {})
    cpu             = optional(string, "1")
    memory          = optional(string, "512Mi")
    health          = optional(string, "/health")
    startup_seconds = optional(number, 120)
    liveness        = optional(bool, false)
  })
  default = null

  validation {
    condition     = var.app == null ? true : length(regexall("@sha256:[0-9a-f]{64}$", var.app.image)) == 1
    error_message = "The application's image is named by its digest, NAME@sha256:…."
  }
  validation {
    condition     = var.app == null ? true : var.app.port >= 1 && var.app.port <= 65535 && var.app.port != 8080
    error_message = "The application's port is 1 to 65535, and not the worker's, 8080."
  }
  validation {
    condition     = var.app == null ? true : var.app.startup_seconds > 0 && var.app.startup_seconds <= 240
    error_message = "The application's start takes up to 240 seconds: Cloud Run waits no longer."
  }
  validation {
    condition     = var.app == null ? true : length(setintersection(keys(var.app.env), keys(var.app.secrets))) == 0
    error_message = "A variable of the application has a plain value and a secret."
  }
  validation {
    condition     = var.app == null ? true : alltrue([for s in values(var.app.secrets) : length(regexall("^[1-9][0-9]*$", s.version)) == 1])
    error_message = "A secret's version is a number, as in worker_secrets."
  }
}
