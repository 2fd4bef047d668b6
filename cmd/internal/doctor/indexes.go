package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	firestore "google.golang.org/api/firestore/v1"

	"taskguard/repo"
	"taskguard/worker"
)

// Indexes are the indexes of a database that matter for the worker.
type Indexes struct {
	Database  string
	Composite map[string]string // the states by "group: field order, …"; an empty state is unknown
	Fields    map[string]bool   // whether a field with its own settings, by group/field, is indexed
	TTL       map[string]bool   // whether a field, by group/field, has a TTL policy
}

func newIndexes() Indexes {
	return Indexes{Composite: map[string]string{}, Fields: map[string]bool{}, TTL: map[string]bool{}}
}

// NeededIndexes returns the composite indexes that the queries of a kind need: for recovery, for the
// filters, and for the oldest unfinished document.
func NeededIndexes(k worker.Kind) (all []string) {
	prefix, status := path.Base(k.Collection)+": ", cmp.Or(k.Fields.Status, "status")
	all = append(all, prefix+status+" ASCENDING, updatedAt ASCENDING")
	for _, field := range []string{status, cmp.Or(k.Fields.Error, "error") + ".code", "lastError.code"} {
		all = append(all, prefix+field+" ASCENDING, updatedAt DESCENDING")
	}
	return append(all, prefix+status+" ASCENDING, createdAt ASCENDING")
}

// create returns the command that creates an index that NeededIndexes returns.
func (all Indexes) create(needed string) string {
	group, fields, _ := strings.Cut(needed, ": ")
	const format = "gcloud firestore indexes composite create --database='%s' --collection-group=%s"
	command := fmt.Sprintf(format, all.Database, group)
	for field := range strings.SplitSeq(fields, ", ") {
		name, order, _ := strings.Cut(field, " ")
		command += " --field-config=field-path=" + name + ",order=" + strings.ToLower(order)
	}
	return command
}

// indexesFile reads Firebase's firestore.indexes.json.
func indexesFile(name string) (Indexes, error) {
	var f struct {
		Indexes []struct {
			CollectionGroup string `json:"collectionGroup"`
			firestore.GoogleFirestoreAdminV1Index
		} `json:"indexes"`
		FieldOverrides []struct {
			CollectionGroup string `json:"collectionGroup"`
			FieldPath       string `json:"fieldPath"`
			TTL             bool   `json:"ttl"`
			Indexes         []any  `json:"indexes"`
		} `json:"fieldOverrides"`
	}
	all := newIndexes()
	err := decodeFile(name, "a firestore.indexes.json", &f)

	for i := range f.Indexes {
		all.add(f.Indexes[i].CollectionGroup, &f.Indexes[i].GoogleFirestoreAdminV1Index)
	}

	for _, o := range f.FieldOverrides {
		all.TTL[o.CollectionGroup+"/"+o.FieldPath] = o.TTL
		if o.Indexes != nil {
			all.Fields[o.CollectionGroup+"/"+o.FieldPath] = len(o.Indexes) > 0
		}
	}
	return all, err
}

// add adds a composite index, unless its scope serves no query of one collection.
func (all *Indexes) add(group string, i *firestore.GoogleFirestoreAdminV1Index) {
	var fields []string
	for _, f := range i.Fields {
		if f.FieldPath != "__name__" { // Google adds it to each index
			fields = append(fields, f.FieldPath+" "+f.Order)
		}
	}
	if i.QueryScope == "" || i.QueryScope == "COLLECTION" {
		all.Composite[group+": "+strings.Join(fields, ", ")] = i.State
	}
}

// addFields adds the settings of fields.
func (all *Indexes) addFields(p *firestore.GoogleFirestoreAdminV1ListFieldsResponse) error {
	for _, f := range p.Fields {
		parts := strings.Split(f.Name, "/") // projects/P/databases/D/collectionGroups/G/fields/F
		name := parts[5] + "/" + parts[7]
		if c := f.IndexConfig; c != nil && !c.UsesAncestorConfig {
			all.Fields[name] = len(c.Indexes) > 0
		}
		all.TTL[name] = f.TtlConfig != nil && f.TtlConfig.State != "NEEDS_REPAIR"
	}
	return nil
}

// indexed reports whether a field of a collection group is indexed, by the nearest setting:
// the path * stands for each field, and the group __default__ for each group.
func (all Indexes) indexed(group, name string) bool {
	for _, f := range []string{group + "/" + name, group + "/*", "__default__/*"} {
		if indexed, set := all.Fields[f]; set {
			return indexed
		}
	}
	return true
}

// checkIndexes applies the rules about the indexes of each kind of work.
func (d *diagnosis) checkIndexes() {
	if !d.hasRead(DatabaseIndexes) {
		return
	}
	for i := range d.Kinds {
		d.checkKind(&d.Kinds[i])
	}
}

// checkKind applies the rules to the indexes and the TTL policy of one collection.
func (d *diagnosis) checkKind(k *worker.Kind) {
	database, group := d.Indexes.Database, path.Base(k.Collection)
	input, result := cmp.Or(k.Fields.Input, "input"), cmp.Or(k.Fields.Result, "result")
	exempt := []string{input, result, "checkpoint", "effects"}
	if other := d.prepared(group, exempt); other != "" {
		d.rule(Problem, "collection", true,
			"The collection group %s has no exempted fields, but %s has, and no kind of work uses that: "+
				"a name may be misspelt.\n"+
				"Correct ANALYSES_COLLECTION or KINDS. If %[1]s is right, copy deploy/firestore.indexes.json for this name.",
			group, other)
		return
	}

	for _, need := range NeededIndexes(*k) {
		state, exists := d.Indexes.Composite[need]
		if !exists {
			state = "missing"
		}
		create := "reate it (" + d.Indexes.create(need) + ")."
		fix := cmp.Or(map[string]string{
			"CREATING":     "Wait until it is READY.",
			"NEEDS_REPAIR": "Delete it (gcloud firestore indexes composite delete), and then c" + create,
		}[state], "C"+create)
		d.rule(Problem, "index-missing", state != "" && state != "READY",
			"The index of %s is %s. Queries fail: with ascending updatedAt, recovery; with descending, the console "+
				"and status, requeue and cancel by filter; with createdAt, the age of the oldest one.\n%s",
			need, state, fix)
	}
	for _, name := range exempt {
		d.rule(Problem, "field-indexed", d.Indexes.indexed(group, name),
			"The field %s of %s is indexed: Firestore refuses documents with over 40,000 index entries.\n"+
				"Exempt it (gcloud firestore indexes fields update %[1]s --database='%[3]s' --collection-group=%[2]s "+
				"--disable-indexes).", name, group, database)
	}
	keyed := len(k.KeyFields) > 0 || d.hasRead(WorkerSettings) && d.config.Options.KeyField != ""
	indexed := []string{cmp.Or(k.Fields.Status, "status"), "lockExpiresAt", "nextAttemptAt", "updatedAt"}
	if keyed {
		indexed = append(indexed, "parkedAt", "parkedFor")
		d.checkKeyCollection(repo.KeyCollection(group))
	}
	for _, name := range indexed {
		d.rule(Problem, "field-not-indexed", !d.Indexes.indexed(group, name),
			"The field %s of %s is exempt from indexes: queries of recovery or of the console fail.\n"+
				"Index it (gcloud firestore indexes fields update %[1]s --database='%[3]s' --collection-group=%[2]s "+
				"--index=order=ascending --index=order=descending).", name, group, database)
	}
	for _, field := range slices.Sorted(maps.Keys(d.Indexes.TTL)) {
		name, ours := strings.CutPrefix(field, group+"/")
		d.rule(Problem, "ttl-field", ours && d.Indexes.TTL[field] && name != "expireAt",
			"A TTL policy on %s deletes documents of %s, also unfinished ones.\n"+
				"Disable it (gcloud firestore fields ttls update %[1]s --database='%[3]s' --collection-group=%[2]s "+
				"--disable-ttl). The field for KEEP_FINISHED is expireAt.", name, group, database)
	}

	expires := d.hasRead(WorkerSettings) && d.config.Options.Keep > 0
	d.rule(Advice, "keep-no-ttl", expires && !d.Indexes.TTL[group+"/expireAt"],
		"KEEP_FINISHED is set, and expireAt of %[2]s has no TTL policy: finished documents are kept forever.\n"+
			"Create it (gcloud firestore fields ttls update expireAt --database='%[1]s' --collection-group=%[2]s "+
			"--enable-ttl), or remove KEEP_FINISHED.", database, group)
}

// checkKeyCollection applies the rules to the collection group that has the slots of keys.
func (d *diagnosis) checkKeyCollection(group string) {
	for _, name := range []string{"slots", "expireAt"} {
		d.rule(Advice, "key-indexed", d.Indexes.indexed(group, name),
			"The field %s of %s is indexed, and each heartbeat rewrites its entries, which no query uses.\n"+
				"Exempt it (gcloud firestore indexes fields update %[1]s --database='%[3]s' --collection-group=%[2]s "+
				"--disable-indexes).", name, group, d.Indexes.Database)
	}
	d.rule(Advice, "key-no-ttl", !d.Indexes.TTL[group+"/expireAt"],
		"The field expireAt of %[2]s has no TTL policy: the key that a crashed worker leaves there is kept forever.\n"+
			"Create it (gcloud firestore fields ttls update expireAt --database='%[1]s' --collection-group=%[2]s "+
			"--enable-ttl).", d.Indexes.Database, group)
}

// prepared returns another collection group, which has these exemptions and is no kind's, if this
// group has none.
func (d *diagnosis) prepared(group string, exempt []string) (other string) {
	groups := map[string]bool{}
	for name := range d.Indexes.Fields {
		groups[path.Dir(name)] = true
	}
	if groups[group] {
		return ""
	}

	for i := range d.Kinds {
		delete(groups, path.Base(d.Kinds[i].Collection))
	}
	for _, other := range slices.Sorted(maps.Keys(groups)) {
		lacks := func(field string) bool { indexed, set := d.Indexes.Fields[other+"/"+field]; return indexed || !set }
		if !slices.ContainsFunc(exempt, lacks) {
			return other
		}
	}
	return ""
}
