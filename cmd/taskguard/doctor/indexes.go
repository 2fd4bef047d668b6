package doctor

import (
	"fmt"
	"strings"

	firestore "google.golang.org/api/firestore/v1"
)

// indexesJSON is Firebase's firestore.indexes.json.
type indexesJSON struct {
	Indexes []struct {
		CollectionGroup string       `json:"collectionGroup"`
		QueryScope      string       `json:"queryScope"`
		APIScope        string       `json:"apiScope"`
		Density         string       `json:"density"`
		Multikey        bool         `json:"multikey"`
		Unique          bool         `json:"unique"`
		Fields          []indexField `json:"fields"`
	} `json:"indexes"`
	FieldOverrides []struct {
		CollectionGroup string `json:"collectionGroup"`
		FieldPath       string `json:"fieldPath"`
		TTL             bool   `json:"ttl"`
		Indexes         []any  `json:"indexes"`
	} `json:"fieldOverrides"`
}

type indexField struct {
	FieldPath    string `json:"fieldPath"`
	Order        string `json:"order"`
	ArrayConfig  string `json:"arrayConfig"`
	VectorConfig any    `json:"vectorConfig"`
}

func indexesFile(name string) (Indexes, error) {
	data, err := readFile(name)
	if err != nil {
		return Indexes{}, err
	}
	var f indexesJSON
	if err := decode(data, &f); err != nil {
		return Indexes{}, fmt.Errorf("%s is no firestore.indexes.json: %w", name, err)
	}
	var all Indexes
	for _, i := range f.Indexes {
		if i.QueryScope != "" && i.QueryScope != collectionScope {
			continue // serves no query of one collection
		}
		index := Index{Group: i.CollectionGroup}
		for _, field := range i.Fields {
			index.Fields = append(index.Fields, IndexField{field.FieldPath, field.Order})
		}
		all.Composite = append(all.Composite, index)
	}
	all.Fields = map[Field]bool{}
	for _, o := range f.FieldOverrides {
		if o.Indexes != nil {
			all.Fields[Field{o.CollectionGroup, o.FieldPath}] = len(o.Indexes) > 0
		}
	}
	return all, nil
}

const collectionScope = "COLLECTION"

// addIndexes adds what the API lists of a collection group.
func (all *Indexes) addIndexes(group string, listed []*firestore.GoogleFirestoreAdminV1Index) {
	for _, i := range listed {
		if i.QueryScope != collectionScope {
			continue
		}
		index := Index{Group: group, State: i.State}
		for _, field := range i.Fields {
			index.Fields = append(index.Fields, IndexField{field.FieldPath, field.Order})
		}
		all.Composite = append(all.Composite, index)
	}
}

// addFields adds the fields that the API lists as having settings of their own.
func (all *Indexes) addFields(listed []*firestore.GoogleFirestoreAdminV1Field) {
	if all.Fields == nil {
		all.Fields = map[Field]bool{}
	}
	for _, f := range listed {
		parts := strings.Split(f.Name, "/") // projects/P/databases/D/collectionGroups/G/fields/F
		if c := f.IndexConfig; c != nil && !c.UsesAncestorConfig && len(parts) == 8 {
			all.Fields[Field{parts[5], parts[7]}] = len(c.Indexes) > 0
		}
	}
}

// indexed reports whether a field of the analyses is, by the nearest setting.
func (all Indexes) indexed(name string) bool {
	for _, f := range []Field{{all.Group, name}, {all.Group, "*"}, {"__default__", "*"}} {
		if is, set := all.Fields[f]; set {
			return is
		}
	}
	return true
}
