locals {
  database = var.create_database ? google_firestore_database.this[0].name : local.names.database
}

resource "google_firestore_database" "this" {
  count = var.create_database ? 1 : 0

  project     = var.project
  name        = local.names.database
  location_id = coalesce(var.database_location, var.region)
  type        = "FIRESTORE_NATIVE"

  # The database can be restored to any moment of the last seven days.
  point_in_time_recovery_enablement = "POINT_IN_TIME_RECOVERY_ENABLED"

  # Neither the console nor `terraform destroy` deletes the analyses.
  delete_protection_state = var.delete_database ? "DELETE_PROTECTION_DISABLED" : "DELETE_PROTECTION_ENABLED"
  deletion_policy         = var.delete_database ? "DELETE" : "ABANDON"

  dynamic "cmek_config" {
    for_each = var.database_kms_key[*]
    content {
      kms_key_name = cmek_config.value
    }
  }

  depends_on = [google_project_service.api]
}

# Locks on documents last seconds: `terraform destroy` deletes it.
resource "google_firestore_database" "doclock" {
  count = local.doclock && var.doclock_database == null ? 1 : 0

  project         = var.project
  name            = local.names.doclock_database
  location_id     = coalesce(var.database_location, var.region)
  type            = "FIRESTORE_NATIVE"
  deletion_policy = "DELETE"

  dynamic "cmek_config" {
    for_each = var.database_kms_key[*]
    content {
      kms_key_name = cmek_config.value
    }
  }

  depends_on = [google_project_service.api]
}

resource "google_firestore_index" "analyses" {
  for_each = { for i in local.firestore.indexes : join(",", [for f in i.fields : "${f.fieldPath} ${f.order}"]) => i if var.create_indexes }

  project     = var.project
  database    = local.database
  collection  = local.collection_group
  query_scope = each.value.queryScope

  dynamic "fields" {
    for_each = each.value.fields
    content {
      field_path = fields.value.fieldPath
      order      = fields.value.order
    }
  }

  depends_on = [google_project_service.api]
}

resource "google_firestore_field" "exempt" {
  for_each = { for o in local.firestore.fieldOverrides : o.fieldPath => o if var.create_indexes && o.collectionGroup == "analyses" }

  project    = var.project
  database   = local.database
  collection = local.collection_group
  field      = each.key

  # Empty: not indexed.
  index_config {}

  # The policy would delete documents of an application that has an expireAt of its own.
  dynamic "ttl_config" {
    for_each = each.key == "expireAt" ? var.keep_finished_days[*] : []
    content {}
  }

  depends_on = [google_project_service.api]
}

# The collection of CONCURRENCY_KEY's slots is the worker's alone, so the policy deletes nothing else. Each heartbeat
# writes all slots of its key.
resource "google_firestore_field" "keys" {
  for_each = { for o in local.firestore.fieldOverrides : o.fieldPath => o if var.create_indexes && o.collectionGroup == "analysesKeys" }

  project    = var.project
  database   = local.database
  collection = "${local.collection_group}Keys"
  field      = each.key

  # Empty: not indexed.
  index_config {}

  dynamic "ttl_config" {
    for_each = try(each.value.ttl, false) ? [true] : []
    content {}
  }

  depends_on = [google_project_service.api]
}
