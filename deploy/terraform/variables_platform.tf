variable "labels" {
  description = "Labels of the services and alerts."
  type        = map(string)
  default     = {}
}

variable "deletion_protection" {
  description = "Whether `terraform destroy` refuses to delete the services and the job. To destroy them, apply false first."
  type        = bool
  default     = true
}

variable "kms_key" {
  description = "Key of Cloud KMS in full, in the region, which encrypts the services' images; Cloud Run's service agent may use it already: service-NUMBER@serverless-robot-prod.iam.gserviceaccount.com has roles/cloudkms.cryptoKeyEncrypterDecrypter. The databases have database_kms_key."
  type        = string
  default     = null
}

variable "binary_authorization" {
  description = "Which images the services may run: default for the project's policy, or a platform policy in full; null: any. The release attests nothing: a policy that requires attestations refuses its images; a policy that allows the repository accepts them."
  type        = string
  default     = null
}

variable "worker_vpc" {
  description = "Direct egress of the worker into a VPC: network or subnetwork, network tags, and egress, PRIVATE_RANGES_ONLY or ALL_TRAFFIC, with which Google's APIs need Private Google Access. recovery_service has it too. For a Shared VPC, subnetwork is projects/HOST/regions/REGION/subnetworks/NAME, and Cloud Run's service agent, service-NUMBER@serverless-robot-prod.iam.gserviceaccount.com, has roles/compute.networkUser on it; null: none."
  type = object({
    network    = optional(string)
    subnetwork = optional(string)
    tags       = optional(list(string))
    egress     = optional(string, "PRIVATE_RANGES_ONLY")
  })
  default = null

  validation {
    condition     = var.worker_vpc == null ? true : var.worker_vpc.network != null || var.worker_vpc.subnetwork != null
    error_message = "The VPC is named by network or subnetwork."
  }
}

variable "worker_cpu_always" {
  description = "Whether the worker's instances have CPU between requests too, which costs more. A run needs it only during its own request."
  type        = bool
  default     = false
}

variable "worker_gpu" {
  description = "GPU of each instance, such as nvidia-l4, for the container that analyzes, which needs 4 CPUs and 16Gi; null: none. CPU is then always allocated, and without recovery_service at least one instance always runs. The quota of GPUs is at least worker_max_instances, and one more for the new revision that a release checks."
  type        = string
  default     = null

  validation {
    condition     = var.worker_gpu == null ? true : local.analyzing_cpu >= 4 && local.analyzing_gib >= 16
    error_message = "A GPU needs at least 4 CPUs and 16Gi of the container that analyzes: cpu and memory of app, otherwise worker_cpu and worker_memory."
  }
}

variable "recovery_service" {
  description = "Whether Cloud Scheduler calls recovery in its own small service, NAME-recovery, so that the worker's instances, such as those with a GPU, all end when there is nothing to do. A release brings it the worker's image and its settings: by hand with the output environment, by Cloud Build with _RECOVERY=NAME-recovery."
  type        = bool
  default     = false
}

variable "worker_volumes" {
  description = "Folders of the container that analyzes, by the volume's name: an absolute path, and one of bucket; nfs, as SERVER:/PATH in worker_vpc; secret, whose version secret_version, a number, is the file path/SECRET; memory, a size such as 512Mi that counts as the container's. Buckets and NFS are read-only unless read_only is false. The worker's account gets the role."
  type = map(object({
    path      = string
    bucket    = optional(string)
    nfs       = optional(string)
    secret    = optional(string)
    memory    = optional(string)
    read_only = optional(bool, true)

    secret_version = optional(string)
  }))
  default = {}

  validation {
    condition     = alltrue([for v in values(var.worker_volumes) : length(regexall("^[1-9][0-9]*$", coalesce(v.secret_version, "none"))) == 1 if v.secret != null])
    error_message = "A volume's secret needs secret_version, a number."
  }

  validation {
    condition     = alltrue([for v in values(var.worker_volumes) : length([for s in [v.bucket, v.nfs, v.secret, v.memory] : s if s != null]) == 1])
    error_message = "A volume is one of bucket, nfs, secret and memory."
  }
  validation {
    condition     = !contains(keys(var.worker_volumes), "cloudsql")
    error_message = "The volume cloudsql belongs to cloud_sql_instances."
  }
  validation {
    condition     = alltrue([for v in values(var.worker_volumes) : v.nfs == null ? true : var.worker_vpc != null && length(regexall("^[^:]+:/", v.nfs)) == 1])
    error_message = "An NFS volume is SERVER:/PATH, and needs worker_vpc."
  }
}

variable "cloud_sql_instances" {
  description = "Cloud SQL instances, PROJECT:REGION:INSTANCE, that the container that analyzes connects to by sockets in /cloudsql. The worker's account may connect to these only."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for i in var.cloud_sql_instances : length(regexall("^[^:]+:[^:]+:[^:]+$", i)) == 1])
    error_message = "An instance is PROJECT:REGION:INSTANCE."
  }
}
