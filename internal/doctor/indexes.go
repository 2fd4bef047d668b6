package doctor

import (
	"strings"

	firestore "google.golang.org/api/firestore/v1"
)

// Indexes are a database's, as far as the worker needs them.
type Indexes struct {
	Group     string            // the collection group of the analyses
	Composite map[string]string // the states by "group: field order, …"; an empty state is unknown
	Fields    map[string]bool   // whether a field is indexed, by group/field, if it has settings of its own
}

// NeededIndexes returns the composite indexes that the queries need: recovery's first, those of
// the filters, and that of the oldest unfinished analysis.
func NeededIndexes(group string) (all []string) {
	all = append(all, group+": status ASCENDING, updatedAt ASCENDING")
	for _, field := range []string{"status", "error.code", "lastError.code"} {
		all = append(all, group+": "+field+" ASCENDING, updatedAt DESCENDING")
	}
	return append(all, group+": status ASCENDING, createdAt ASCENDING")
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
			TTL             any    `json:"ttl"`
			Indexes         []any  `json:"indexes"`
		} `json:"fieldOverrides"`
	}
	all := Indexes{Composite: map[string]string{}, Fields: map[string]bool{}}
	err := decodeFile(name, "a firestore.indexes.json", &f)
	for i := range f.Indexes {
		all.add(f.Indexes[i].CollectionGroup, &f.Indexes[i].GoogleFirestoreAdminV1Index)
	}
	for _, o := range f.FieldOverrides {
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
		if f.FieldPath != "__name__" { // which Google adds to each index
			fields = append(fields, f.FieldPath+" "+f.Order)
		}
	}
	if i.QueryScope == "" || i.QueryScope == "COLLECTION" {
		all.Composite[group+": "+strings.Join(fields, ", ")] = i.State
	}
}

// indexed reports whether a field of the analyses is indexed, by the nearest setting:
// the path * stands for each field, and the group __default__ for each group.
func (all Indexes) indexed(name string) bool {
	for _, f := range []string{all.Group + "/" + name, all.Group + "/*", "__default__/*"} {
		if is, set := all.Fields[f]; set {
			return is
		}
	}
	return true
}
