# An application in another language beside the worker (deploy/sidecar), with a secret, a
# database of Cloud SQL, and addresses of a VPC.

provider "google" { project = "my-project" }

module "taskguard" {
  source                = "../.."
  project               = "my-project"
  worker_image          = "europe-west1-docker.pkg.dev/my-project/taskguard/worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  submitters            = ["serviceAccount:api@my-project.iam.gserviceaccount.com"]
  notification_channels = ["projects/my-project/notificationChannels/1234567890"]
  keep_finished_days    = 90

  app = {
    image   = "europe-west1-docker.pkg.dev/my-project/taskguard/app@sha256:0000000000000000000000000000000000000000000000000000000000000000"
    env     = { APP_PORT = "9000", APP_SLOTS = "10" }
    secrets = { DATABASE_PASSWORD = { secret = "app-database", version = "1" } }
  }
  worker_vpc          = { network = "default", subnetwork = "default" }
  cloud_sql_instances = ["my-project:europe-west1:app"]
}

output "environment" { value = module.taskguard.environment }
