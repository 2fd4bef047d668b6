provider "google" { project = "my-project" }

module "taskguard" { # without notification_channels no alert is sent
  source       = "../.."
  project      = "my-project"
  worker_image = "europe-west1-docker.pkg.dev/my-project/taskguard/worker@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  submitters   = ["serviceAccount:api@my-project.iam.gserviceaccount.com"]

  keep_finished_days = null # analyses are never deleted; 90 deletes each 90 days after its end
}

output "environment" { value = module.taskguard.environment }
