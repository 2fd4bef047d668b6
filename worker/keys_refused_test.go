package worker_test

import (
	"context"
	"strings"
	"testing"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

// A limit that would limit nothing is refused, and so are keys that cannot work.
func TestKey_Refused(t *testing.T) {
	queue := worker.Queue{Name: "projects/p/locations/l/queues/q", TargetURL: "https://a.example", EmulatorHost: "127.0.0.1:1"}
	run := func(context.Context, worker.Job) (any, error) { return 1, nil }
	start := func(context.Context, string) error { return nil }
	limit := func(string) int { return 1 }
	tenant := []string{"tenant"}
	for name, tc := range map[string]struct {
		o    worker.Options
		k    worker.Kind
		want string // contains; empty: it is not refused
	}{
		"the limit of the Options for the KeyFields of a Kind": {
			worker.Options{Queue: queue, KeyLimit: 3}, worker.Kind{Run: run, KeyFields: tenant}, "",
		},
		"the KeyLimit and KeyHold of a Kind for the KeyField of the Options": {
			worker.Options{Queue: queue, KeyField: "tenant"}, worker.Kind{Run: run, KeyLimit: limit, KeyHold: true}, "",
		},
		"a KeyLimit without a key": {
			worker.Options{Queue: queue}, worker.Kind{Run: run, KeyLimit: limit}, "KeyLimit and KeyHold need KeyFields",
		},
		"a KeyHold without a key": {
			worker.Options{Queue: queue}, worker.Kind{Run: run, KeyHold: true}, "KeyLimit and KeyHold need KeyFields",
		},
		"a KeyHold of a program that only submits": {
			worker.Options{Queue: queue}, worker.Kind{KeyHold: true}, "",
		},
		"no queue": {
			worker.Options{}, worker.Kind{Run: run, KeyFields: tenant}, "KeyFields need Options.Queue",
		},
		"runs elsewhere": {
			worker.Options{Queue: queue}, worker.Kind{Start: start, KeyFields: tenant}, "Start cannot limit its runs by a key",
		},
		"runs elsewhere with the key of the Options": {
			worker.Options{Queue: queue, KeyField: "tenant"}, worker.Kind{Start: start}, "Start cannot limit its runs by a key",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := open(t, emulatortest.Embedded(t), func(o *worker.Options) {
				o.Queue, o.KeyField, o.KeyLimit = tc.o.Queue, tc.o.KeyField, tc.o.KeyLimit
			})
			_, err := g.Register(tc.k)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// The collection of a kind, or of the records of Do, is never the collection of another kind's keys.
func TestKey_CollectionOfItsOwn(t *testing.T) {
	queue := worker.Queue{Name: "projects/p/locations/l/queues/q", TargetURL: "https://a.example", EmulatorHost: "127.0.0.1:1"}
	keyed := worker.Kind{Name: "job", Collection: "jobs", KeyFields: []string{"tenant"}}
	other := worker.Kind{Name: "other", Collection: "jobsKeys"}
	unlimited := worker.Kind{Name: "job", Collection: "jobs"}
	records := worker.DoOptions{Collection: "jobsKeys"}
	opened := func() *worker.Guard {
		return open(t, emulatortest.Embedded(t), func(o *worker.Options) { o.Queue = queue })
	}

	for name, kinds := range map[string][2]worker.Kind{"first the keys": {keyed, other}, "first the kind": {other, keyed}} {
		g := opened()
		g.MustRegister(kinds[0])
		if _, err := g.Register(kinds[1]); err == nil || !strings.Contains(err.Error(), "has the keys of the other") {
			t.Errorf("%s: %v", name, err)
		}
	}
	g := opened()
	g.MustRegister(unlimited)
	if _, err := g.Register(other); err != nil {
		t.Errorf("without keys: %v", err)
	}

	g = opened()
	g.MustRegister(keyed)
	if _, err := doWith(t.Context(), g, "x", records, one); err == nil || !strings.Contains(err.Error(), "belongs to kind") {
		t.Errorf("records of Do among the keys: %v", err)
	}
	g = opened()
	if _, err := doWith(t.Context(), g, "x", records, one); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Register(keyed); err == nil || !strings.Contains(err.Error(), "records of Do") {
		t.Errorf("keys among the records of Do: %v", err)
	}
}
