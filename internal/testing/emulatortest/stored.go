package emulatortest

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

// StoredFile is the list of what versions store, from the top of the repository.
const StoredFile = "repo/testdata/stored.txt"

// ReadStored reads StoredFile, and returns the lines of that kind of document, or of "task", without the
// version and the kind.
func ReadStored(t testing.TB, top, kind string) []string {
	t.Helper()
	f, err := os.Open(top + "/" + StoredFile)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var all []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 2 && words[1] == kind {
			all = append(all, strings.Join(words[2:], " "))
		}
	}
	return all
}

// Stored returns what w sets, one field a line: its path and its type, as StoredFile lists them. What an
// application chooses has the type any.
func Stored(w *firestorepb.Write) (lines []string) {
	add := func(path, kind string) { lines = append(lines, path+" "+kind) }
	for name, v := range w.GetUpdate().GetFields() {
		addStored(name, v, add)
	}
	for _, t := range w.GetUpdateTransforms() {
		add(t.GetFieldPath(), "timestamp") // the server's
	}
	return lines
}

// The fields whose values, and whose names in a map, are data.
var (
	anyValue = map[string]bool{"input": true, "result": true, "checkpoint": true}
	anyName  = map[string]bool{"effects": true, "slots": true}
)

func addStored(path string, v *firestorepb.Value, add func(path, kind string)) {
	if anyValue[path] {
		add(path, "any")
		return
	}
	switch v := v.GetValueType().(type) {
	case *firestorepb.Value_MapValue:
		for name, inner := range v.MapValue.GetFields() {
			if anyName[path] {
				name = "*"
			}
			addStored(path+"."+name, inner, add)
		}
	case *firestorepb.Value_ArrayValue:
		for _, inner := range v.ArrayValue.GetValues() {
			addStored(path+"[]", inner, add)
		}
	default:
		kind := strings.TrimPrefix(fmt.Sprintf("%T", v), "*firestorepb.Value_")
		add(path, strings.ToLower(strings.TrimSuffix(kind, "Value")))
	}
}
