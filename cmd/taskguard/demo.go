package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/worker/taskqueue"
)

// The demo's measures. A run is long enough to be killed in its middle, and the
// lock short enough to see it expire.
const (
	demoWorkers   = 3
	demoRun       = 2400 * time.Millisecond
	demoTTL       = "5s"
	demoHeartbeat = "1500ms"
	demoLimit     = 2 * time.Minute // besides what the files themselves take
	replaceAfter  = 1500 * time.Millisecond
	stopGrace     = 3 * time.Second
)

// demoPause is between the files' first deliveries, at most.
const demoPause = 900 * time.Millisecond

// again is when the same task is delivered once more: during the run, and
// after it.
var again = []time.Duration{600 * time.Millisecond, 3200 * time.Millisecond}

// demo analyses files on worker processes, each task delivered several times,
// kills one worker in the middle of a run, and shows what came of it.
func demo(ctx context.Context, c *call) error {
	google := c.flags.Bool("cloud", false, "use the Firestore of GOOGLE_CLOUD_PROJECT; workers and queue stay on this machine")
	c.takesJSON("print one JSON document at the end; progress goes to standard error")
	files, err := c.parse(0, -1)
	if err != nil {
		return err
	}
	docs, from, err := demoDocuments(files)
	if err != nil {
		return err
	}
	d := &demonstration{c: c, docs: docs, rows: map[string]*row{}, begun: make(chan fleet.Run, 64), over: make(chan struct{})}
	if d.place, d.where, err = c.demoPlace(*google); err != nil {
		return err
	}
	progress := c.out
	if c.json {
		progress = c.err
	}
	var names []string
	for i, doc := range docs {
		names = append(names, doc.name)
		d.rows[doc.id] = &row{index: i, Name: doc.name, ID: doc.id, task: taskqueue.Name("demo", doc.id)}
	}
	d.show = newDisplay(progress, c.lookup, names)
	if d.place.emulator != "" {
		d.show.note(strong, usingEmulator, d.place.emulator)
	}
	d.show.note(plain, "%s: %s", counted(len(docs), "document"), from)
	if !*google && d.place.emulator == "" && c.value("GOOGLE_CLOUD_PROJECT") != "" {
		d.show.note(plain, "GOOGLE_CLOUD_PROJECT is not touched: --cloud runs the demo on its Firestore")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, demoLimit+time.Duration(len(docs))*demoRun, errors.New("the demo did not end in time"))
	defer cancel()
	err = d.run(ctx)
	d.show.close()
	if err != nil {
		return err
	}
	return d.verdict()
}

// demoPlace is where the demo's documents go: a collection of their own.
func (c *call) demoPlace(google bool) (p place, where string, err error) {
	p = place{
		project: c.value("GOOGLE_CLOUD_PROJECT"), database: c.value("FIRESTORE_DATABASE"),
		collection: newCollection(), emulator: c.value(firestoreEmulator),
	}
	switch {
	case google && p.emulator != "":
		return p, "", environmentError{errors.New(firestoreEmulator + ": contradicts --cloud; unset it")}
	case google && p.project == "":
		return p, "", environmentError{missing("GOOGLE_CLOUD_PROJECT")}
	case google:
		return p, fmt.Sprintf("collection %s of project %s, in Google's cloud, where they stay", p.collection, p.project), nil
	}
	if err := checkEmulator(firestoreEmulator, p.emulator); err != nil {
		return p, "", environmentError{err}
	}
	if p.project == "" || p.emulator == "" {
		p.project = "demo-taskguard"
	}
	if p.emulator == "" {
		p.database = ""
		return p, "the embedded Firestore, which ended with the demo", nil
	}
	return p, fmt.Sprintf("collection %s of project %s, at the emulator %s, where they stay", p.collection, p.project, p.emulator), nil
}
