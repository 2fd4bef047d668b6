package doctor

import (
	"cmp"
	"path"

	"taskguard/worker"
)

// checkIndexes applies the rules about the indexes of each kind of work.
func (d *diagnosis) checkIndexes() {
	for i := range d.Kinds {
		if d.read(DatabaseIndexes) {
			d.checkKind(&d.Kinds[i])
		}
	}
}

func (d *diagnosis) checkKind(k *worker.Kind) {
	database, group := d.Indexes.Database, path.Base(k.Collection)
	for _, need := range NeededIndexes(*k) {
		state, exists := d.Indexes.Composite[need]
		if !exists {
			state = "missing"
		}
		if state != "" && state != "READY" {
			d.problem("index-missing",
				"The index of %s is %s. Queries fail: with ascending updatedAt, recovery; with descending, the console "+
					"and status, requeue and cancel by filter; with createdAt, the age of the oldest one.", need, state).
				fix("Create it (%s). Wait while it is CREATING; delete a NEEDS_REPAIR one first.", d.Indexes.create(need))
		}
	}

	input, result := cmp.Or(k.Fields.Input, "input"), cmp.Or(k.Fields.Result, "result")
	for _, name := range []string{input, result, "checkpoint", "effects"} {
		if d.Indexes.indexed(group, name) {
			d.problem("field-indexed",
				"The field %s of %s is indexed: Firestore refuses documents with over 40,000 index entries.", name, group).
				fix("Exempt it (gcloud firestore indexes fields update %s --database='%s' --collection-group=%s "+
					"--disable-indexes).", name, database, group)
		}
	}

	if d.read(WorkerSettings) && d.config.Options.Keep > 0 && !d.Indexes.TTL[group+"/expireAt"] {
		d.advice("keep-no-ttl",
			"KEEP_FINISHED is set, and expireAt of %s has no TTL policy: finished documents are kept forever.", group).
			fix("Create it (gcloud firestore fields ttls update expireAt --database='%s' --collection-group=%s "+
				"--enable-ttl), or remove KEEP_FINISHED.", database, group)
	}
}
