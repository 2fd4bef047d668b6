package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"taskguard/internal/env"
	"taskguard/internal/text"
	"taskguard/repo"
	"taskguard/worker"
)

const analysis = "analysis"

// Kinds reads the kinds of work from KINDS, a JSON array or @FILE. Without KINDS the only
// kind is analysis. Its collection is ANALYSES_COLLECTION, unless KINDS names another.
func Kinds(e *env.Environment) (all []worker.Kind) {
	collection := e.Checked("ANALYSES_COLLECTION", "analyses", repo.CheckCollection)
	value := e.Text("KINDS", "")
	if value == "" {
		k, _ := worker.Kind{Collection: collection}.Filled() // e has reported a wrong collection
		return []worker.Kind{k}
	}

	list, err := decodeKinds(value)
	if err != nil {
		const want = `want a JSON array of kinds such as [{"name": "order", "collection": "orders"}], or @FILE`
		e.Problem("KINDS", "%s: %v", want, err)
	}
	for i := range list {
		if cmp.Or(list[i].Name, analysis) == analysis {
			list[i].Collection = cmp.Or(list[i].Collection, collection)
		}
		k, err := list[i].Filled()
		duplicate := slices.IndexFunc(all, func(other worker.Kind) bool {
			return k.Name == other.Name || k.Collection == other.Collection || k.Path == other.Path
		})
		if err == nil && duplicate >= 0 {
			err = fmt.Errorf("kind %q has the name, the collection or the path of kind %q", k.Name, all[duplicate].Name)
		}
		if err != nil {
			problem := strings.ReplaceAll(text.Error(err), "\n", "; ")
			e.Problem("KINDS", "the kind at index %d: %s", i, problem)
		}
		all = append(all, k)
	}
	return all
}

// decodeKinds returns the elements of KINDS.
func decodeKinds(text string) (list []worker.Kind, err error) {
	data := []byte(text)
	if file, ok := strings.CutPrefix(text, "@"); ok {
		if data, err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}

	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, err
	}
	if len(list) == 0 || d.More() {
		return nil, errors.New("none, or more than an array")
	}
	return list, nil
}

// TakesKind declares --kind. without describes the default.
func TakesKind(cmd *cobra.Command, lookup Lookup, without string) {
	cmd.Flags().String("kind", "", "the `NAME` of a kind of work in KINDS (default: "+without+")")
	Complete(cmd, "kind", lookup, func(c *Call) (names []string) {
		kinds := Kinds(c.Environment())
		for i := range kinds {
			names = append(names, kinds[i].Name)
		}
		return names
	})
}

// UseRecords makes Places return the place of the records of Do and Idempotent, as --kind do does: the kind
// do in KINDS, or else their default collection.
func (c *Call) UseRecords() { c.records = true }

// records is the kind of the records of Do.
var records = worker.Kind{Name: "do", Collection: "idempotency"}

// Places returns the place of the kind that --kind names, or else the places of all kinds.
// Its error has all problems of e.
func (c *Call) Places(e *env.Environment) (all []Place, err error) {
	store, kinds := e.Firestore(), Kinds(e)
	if c.records || c.kind == records.Name {
		kinds = slices.DeleteFunc(kinds, func(k worker.Kind) bool { return k.Name != records.Name })
		if len(kinds) == 0 {
			kinds = []worker.Kind{records}
		}
	}
	needProject(e, store)
	if err := Check(e); err != nil {
		return nil, err
	}

	var known []string
	for i := range kinds {
		known = append(known, kinds[i].Name)
		if !c.chosen || kinds[i].Name == c.kind {
			all = append(all, Place{store, kinds[i]})
		}
	}
	if len(all) == 0 {
		return nil, unknown("kind", c.kind, known)
	}
	return all, nil
}

// ParseStatus returns the status that text names in the kind of --kind, or else in the first.
func (c *Call) ParseStatus(text string) (string, error) { return ParseStatus(c.fields(), text) }

// Statuses returns the statuses of this kind.
func (c *Call) Statuses() []string { return c.fields().Statuses() }

func (c *Call) fields() worker.Fields {
	kinds := Kinds(c.Environment())
	for i := range kinds {
		if !c.chosen || kinds[i].Name == c.kind {
			return kinds[i].Fields
		}
	}
	return worker.Fields{} // Places reports what is wrong
}

// ParseStatus returns the status that text names in a vocabulary.
func ParseStatus(f worker.Fields, text string) (string, error) {
	if all := f.Statuses(); !slices.Contains(all, text) {
		return "", unknown("status", text, all)
	}
	return f.Named(text), nil
}

// unknown returns the error for a value that is none of the words, and suggests a similar word.
func unknown(noun, value string, words []string) UsageError {
	last := len(words) - 1
	want := strings.TrimPrefix(strings.Join(words[:last], ", ")+" or "+words[last], " or ")
	problem := fmt.Sprintf("unknown %s %q: want %s", noun, value, want)
	if all := text.Nearest(value, words); len(all) > 0 {
		problem += " (did you mean " + all[0] + "?)"
	}
	return UsageError(problem)
}
