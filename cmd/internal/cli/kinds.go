package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"taskguard/internal/env"
	"taskguard/repo"
	"taskguard/worker"
)

const analysis = "analysis"

// Kinds reads the kinds of work: those of KINDS, a JSON array or the @FILE that has one, or
// else analysis. The collection of analysis is that of ANALYSES_COLLECTION, unless KINDS has one.
func Kinds(e *env.Environment) (all []worker.Kind) {
	analyses, text := e.Checked("ANALYSES_COLLECTION", "analyses", repo.CheckCollection), e.Text("KINDS", "")
	if text == "" {
		k, _ := worker.Kind{Collection: analyses}.Filled() // a wrong collection is reported
		return []worker.Kind{k}
	}
	var err error
	var list []json.RawMessage
	data := []byte(text)
	if file, is := strings.CutPrefix(text, "@"); is {
		data, err = os.ReadFile(file)
	}
	if err = cmp.Or(err, json.Unmarshal(data, &list)); err != nil || len(list) == 0 {
		e.Problem("KINDS", `want a JSON array of kinds such as [{"name": "order", "collection": "orders"}], or @FILE: %v`, cmp.Or(err, errors.New("none")))
	}
	for i := range list {
		var k worker.Kind
		d := json.NewDecoder(bytes.NewReader(list[i]))
		d.DisallowUnknownFields()
		err := d.Decode(&k)
		if cmp.Or(k.Name, analysis) == analysis {
			k.Collection = cmp.Or(k.Collection, analyses)
		}
		if err == nil {
			k, err = k.Filled()
		}
		for j := range all {
			if other := &all[j]; err == nil && (k.Name == other.Name || k.Collection == other.Collection || k.Path == other.Path) {
				err = fmt.Errorf("kind %q has the name, the collection or the path of kind %q", k.Name, other.Name)
			}
		}
		if err != nil {
			e.Problem("KINDS", "the kind at index %d: %s", i, strings.ReplaceAll(strings.TrimPrefix(err.Error(), "worker: "), "\n", "; "))
		}
		all = append(all, k)
	}
	return all
}

// TakesKind declares --kind.
func (c *Call) TakesKind(without string) {
	c.Flags.StringVar(&c.kind, "kind", "", "the `NAME` of a kind of work in KINDS (default: "+without+")")
}

// Places reads where the documents of the kinds are: of that of --kind, or else of all. It
// returns all problems of e too.
func (c *Call) Places(e *env.Environment) (all []Place, err error) {
	at, kinds := e.Firestore(), Kinds(e)
	if at.Project == "" {
		e.Problem("GOOGLE_CLOUD_PROJECT", "must be set")
	}
	if err := Check(e); err != nil {
		return nil, err
	}
	var known []string
	for i := range kinds {
		known = append(known, kinds[i].Name)
		if !c.Given("kind") || kinds[i].Name == c.kind {
			all = append(all, Place{at, kinds[i]})
		}
	}
	if len(all) == 0 {
		return nil, UsageError(fmt.Sprintf("--kind %q: the known kinds are %s; KINDS names them", c.kind, strings.Join(known, ", ")))
	}
	return all, nil
}
