# Production, and staging with a database of its own that a destroy deletes, in one project.

provider "google" { project = "my-project" }

module "production" {
  source                = "../.."
  project               = "my-project"
  worker_image          = "europe-west1-docker.pkg.dev/my-project/taskguard/worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  submitters            = ["serviceAccount:api@my-project.iam.gserviceaccount.com"]
  notification_channels = ["projects/my-project/notificationChannels/1234567890"]
  labels                = { environment = "production" }
  keep_finished_days    = 90
}

module "staging" {
  source          = "../.."
  name            = "taskguard-staging"
  project         = "my-project"
  worker_image    = "europe-west1-docker.pkg.dev/my-project/taskguard/worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  submitters      = ["serviceAccount:api-staging@my-project.iam.gserviceaccount.com"]
  labels          = { environment = "staging" }
  delete_database = true

  keep_finished_days  = 32
  deletion_protection = false
}

output "environment" { value = module.production.environment }
output "staging_environment" { value = module.staging.environment }
