resource "google_project_service" "api" {
  for_each = toset(local.apis)

  project = var.project
  service = "${each.key}.googleapis.com"
  # Other users of the project may need it.
  disable_on_destroy = false
}

# What only Google knows; the test of settings.tf sets these two itself.
locals {
  project_number = data.google_project.this.number
  caller         = local.account["caller"].email
}

data "google_project" "this" {
  project_id = var.project
}
