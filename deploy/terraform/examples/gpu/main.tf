# A model on a GPU, read from a bucket. Each of at most three instances runs one analysis
# at a time; recovery's call has the third place, so one instance always runs. With a single
# GPU set worker_concurrency = 2 and 1 for the other two: recovery's call shares the instance.

provider "google" { project = "my-project" }

module "taskguard" {
  source                = "../.."
  project               = "my-project"
  worker_image          = "europe-west1-docker.pkg.dev/my-project/taskguard/worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  submitters            = ["serviceAccount:api@my-project.iam.gserviceaccount.com"]
  notification_channels = ["projects/my-project/notificationChannels/1234567890"]

  app = {
    image  = "europe-west1-docker.pkg.dev/my-project/taskguard/model@sha256:0000000000000000000000000000000000000000000000000000000000000000"
    cpu    = "4"
    memory = "16Gi"
  }
  worker_gpu     = "nvidia-l4"
  worker_volumes = { models = { path = "/models", bucket = "my-models" } }

  worker_concurrency        = 1
  worker_max_instances      = 3
  max_concurrent_dispatches = 2
}

output "environment" { value = module.taskguard.environment }
