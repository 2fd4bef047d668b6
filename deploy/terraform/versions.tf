terraform {
  # 1.9 is the first version in which a variable's validation may refer to another variable.
  required_version = ">= 1.9"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 7.0"
    }
  }
}
