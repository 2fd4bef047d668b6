package worker_test

import (
	"context"
	"strings"
	"testing"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

// queued opens a Guard with a queue, and with the KeyField.
func queued(t *testing.T, field string) *worker.Guard {
	t.Helper()
	return open(t, emulatortest.Embedded(t), func(o *worker.Options) {
		o.Queue = worker.Queue{
			Name: "projects/p/locations/l/queues/q", TargetURL: "https://a.example", EmulatorHost: "127.0.0.1:1",
		}
		o.KeyField = field
	})
}

// checkRefused checks that err is an error that has the word.
func checkRefused(t *testing.T, what string, err error, word string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), word) {
		t.Errorf("%s: %v, want an error about %s", what, err, word)
	}
}

// A limit that would limit nothing is refused, and so are keys that cannot work.
func TestKey_Refused(t *testing.T) {
	run := func(context.Context, worker.Job) (any, error) { return 1, nil }
	start := func(context.Context, string) error { return nil }
	limit := func(string) int { return 1 }
	tenant := []string{"tenant"}

	for name, c := range map[string]struct {
		field string // of the Options
		kind  worker.Kind
		word  string
	}{
		"a KeyLimit without a key":      {"", worker.Kind{Run: run, KeyLimit: limit}, "KeyLimit"},
		"a KeyHold without a key":       {"", worker.Kind{Run: run, KeyHold: true}, "KeyHold"},
		"runs elsewhere":                {"", worker.Kind{Start: start, KeyFields: tenant}, "Start"},
		"runs elsewhere, field of both": {"tenant", worker.Kind{Start: start}, "Start"},
	} {
		_, err := queued(t, c.field).Register(c.kind)
		checkRefused(t, name, err, c.word)
	}
	_, err := open(t, emulatortest.Embedded(t), nil).Register(worker.Kind{Run: run, KeyFields: tenant})
	checkRefused(t, "no queue", err, "TASK_QUEUE")

	if _, err := queued(t, "tenant").Register(worker.Kind{Run: run, KeyLimit: limit, KeyHold: true}); err != nil {
		t.Errorf("a KeyLimit and a KeyHold for the KeyField of the Options: %v", err)
	}
	if _, err := queued(t, "").Register(worker.Kind{KeyHold: true}); err != nil {
		t.Errorf("a KeyHold of a program that only submits: %v", err)
	}
}

// The collection of a kind, or of the records of Do, is never the collection of another kind's keys.
func TestKey_Collection(t *testing.T) {
	keyed := worker.Kind{Name: "job", Collection: "jobs", KeyFields: []string{"tenant"}}
	other := worker.Kind{Name: "other", Collection: "jobsKeys"}
	records := worker.DoOptions{Collection: "jobsKeys"}

	for _, kinds := range [][2]worker.Kind{{keyed, other}, {other, keyed}} {
		g := queued(t, "")
		g.MustRegister(kinds[0])
		_, err := g.Register(kinds[1])
		checkRefused(t, kinds[1].Name, err, "keys of the other")
	}
	g := queued(t, "")
	g.MustRegister(worker.Kind{Name: "job", Collection: "jobs"})
	if _, err := g.Register(other); err != nil {
		t.Errorf("without keys: %v", err)
	}

	g = queued(t, "")
	g.MustRegister(keyed)
	_, err := doWith(t.Context(), g, "x", records, one)
	checkRefused(t, "records of Do among the keys", err, "belongs to kind")
	g = queued(t, "")
	if _, err := doWith(t.Context(), g, "x", records, one); err != nil {
		t.Fatal(err)
	}
	_, err = g.Register(keyed)
	checkRefused(t, "keys among the records of Do", err, "records of Do")
}
