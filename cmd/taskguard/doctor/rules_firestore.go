package doctor

import (
	"fmt"
	"slices"
	"strings"
)

func firestoreRules() []rule {
	return []rule{
		{"database-mode", []part{database}, databaseMode},
		{"index-missing", []part{indexes}, indexMissing},
		{"index-not-ready", []part{indexes}, indexNotReady},
		{"field-indexed", []part{indexes}, fieldIndexed},
	}
}

// NeededIndexes are the composite indexes that the worker's queries need, in the
// collection group.
func NeededIndexes(group string) []Index {
	return []Index{{Group: group, Fields: []IndexField{{"status", "ASCENDING"}, {"updatedAt", "ASCENDING"}}}}
}

func databaseMode(v *view) []Finding {
	d := v.Database.Value
	return one(d.Type != "FIRESTORE_NATIVE", Problem,
		fmt.Sprintf("The database %s is of the type %s: the worker needs Firestore in native mode.", d.Name, d.Type),
		"FIRESTORE_DATABASE=NAME, of one made with: gcloud firestore databases create"+inProject(v.Indexes.Value.Project)+" --database=NAME --location=LOCATION --type=firestore-native")
}

// isServedBy reports whether have serves the queries that need i.
func (i Index) isServedBy(have Index) bool {
	fields := slices.DeleteFunc(slices.Clone(have.Fields), func(f IndexField) bool { return f.Path == "__name__" })
	return have.Group == i.Group && slices.Equal(fields, i.Fields)
}

func indexMissing(v *view) (found []Finding) {
	for _, need := range NeededIndexes(v.Indexes.Value.Group) {
		found = append(found, one(!slices.ContainsFunc(v.Indexes.Value.Composite, need.isServedBy), Problem,
			fmt.Sprintf("The index of %s in %s is missing: recovery fails without.", need.fields(), need.Group),
			need.create(v))...)
	}
	return found
}

func indexNotReady(v *view) (found []Finding) {
	for _, need := range NeededIndexes(v.Indexes.Value.Group) {
		var state string
		ready := false
		for _, have := range v.Indexes.Value.Composite {
			if need.isServedBy(have) {
				state, ready = have.State, ready || have.State == "" || have.State == "READY"
			}
		}
		switch {
		case state == "" || ready:
		case state == "CREATING":
			found = append(found, Finding{Severity: Problem,
				Problem: fmt.Sprintf("The index of %s in %s is still being built: recovery fails until it is.", need.fields(), need.Group),
				Fix:     "Wait; gcloud firestore operations list" + v.databaseFlags() + " shows how far it is."})
		default:
			found = append(found, Finding{Severity: Problem,
				Problem: fmt.Sprintf("The index of %s in %s is %s: recovery fails.", need.fields(), need.Group, state),
				Fix:     "Delete it with gcloud firestore indexes composite delete" + v.databaseFlags() + ", then: " + need.create(v)})
		}
	}
	return found
}

func (i Index) fields() string {
	var paths []string
	for _, f := range i.Fields {
		paths = append(paths, f.Path)
	}
	return strings.Join(paths, " and ")
}

func (i Index) create(v *view) string {
	command := "gcloud firestore indexes composite create" + v.databaseFlags() + " --collection-group=" + i.Group
	for _, f := range i.Fields {
		command += " --field-config=field-path=" + f.Path + ",order=" + strings.ToLower(f.Order)
	}
	return command
}

// databaseFlags say to gcloud which database it is.
func (v *view) databaseFlags() string {
	flags := inProject(v.Indexes.Value.Project)
	if d := v.Indexes.Value.Database; d != "" && d != "(default)" {
		flags += " --database=" + d
	}
	return flags
}

// fieldIndexed finds what may be large and is indexed.
func fieldIndexed(v *view) (found []Finding) {
	for _, name := range []string{"input", "result"} {
		found = append(found, one(v.Indexes.Value.indexed(name), Problem,
			fmt.Sprintf("The field %s of %s is indexed: a document with more than 40,000 index entries is refused.", name, v.Indexes.Value.Group),
			fmt.Sprintf("gcloud firestore indexes fields update %s%s --collection-group=%s --disable-indexes", name, v.databaseFlags(), v.Indexes.Value.Group))...)
	}
	return found
}
