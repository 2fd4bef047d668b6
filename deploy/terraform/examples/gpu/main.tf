# A model on a GPU, read from a bucket. Two analyses run at once, each in an instance of its
# own: there must be fewer dispatches than places. Recovery has a small service of its own, so
# no GPU runs when there is nothing to do.

provider "google" { project = "my-project" }

module "taskguard" {
  source                = "../.."
  project               = "my-project"
  worker_image          = "europe-west1-docker.pkg.dev/my-project/taskguard/worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  submitters            = ["serviceAccount:api@my-project.iam.gserviceaccount.com"]
  notification_channels = ["projects/my-project/notificationChannels/1234567890"]
  keep_finished_days    = 90

  app = {
    image  = "europe-west1-docker.pkg.dev/my-project/taskguard/model@sha256:0000000000000000000000000000000000000000000000000000000000000000"
    cpu    = "4"
    memory = "16Gi"
  }
  worker_gpu       = "nvidia-l4"
  recovery_service = true
  worker_volumes   = { models = { path = "/models", bucket = "my-models" } }

  worker_concurrency        = 1
  worker_max_instances      = 3
  max_concurrent_dispatches = 2
}

output "environment" { value = module.taskguard.environment }
