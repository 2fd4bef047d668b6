package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/repo"
	"taskguard/worker"
	"taskguard/worker/taskqueue"
)

// recovered is what recover prints with --json.
type recovered struct {
	Found  int `json:"found"`  // analyses that nobody works on
	Booked int `json:"booked"` // deliveries booked by this call
}

// recoverNow does by hand what POST /internal/tasks/recover does each minute:
// it books a delivery for each unfinished analysis that nobody works on.
func recoverNow(ctx context.Context, c *call) (err error) {
	again := c.flags.Bool("now", false, "book also what was booked already in this hour, as after the queue was purged")
	c.takesJSON("print what was found and booked as one JSON document, also beside an error")
	if _, err := c.parse(0, 0); err != nil {
		return err
	}
	policy, err := c.lockPolicy()
	if err != nil {
		return err
	}
	log := c.log()
	cl, err := c.connect(ctx, mustQueue, repo.Options{Policy: policy, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	guard := worker.Guard{Backlog: cl.analyses, Queue: cl.queue, RunTimeout: cl.runTimeout, Log: log}
	if *again {
		guard.Queue = renaming{cl.queue}
	}
	r, err := guard.Recover(ctx)
	if err := errors.Join(c.tellRecovered(r, err), cl.explainIndex(err)); err != nil {
		return err
	}
	return c.tellUnknown(ctx, cl)
}

// renaming is a queue that books each task under a new name.
type renaming struct{ *taskqueue.Queue }

func (q renaming) Book(ctx context.Context, t taskqueue.Task) (already bool, err error) {
	t.Name = taskqueue.Name(t.Name, rand.Text())
	return q.Queue.Book(ctx, t)
}

// tellUnknown reports, on standard error, the analyses that recovery cannot find.
func (c *call) tellUnknown(ctx context.Context, cl *client) error {
	const most = 1000
	all, err := cl.analyses.UnknownStatus(ctx, most)
	if err != nil || len(all) == 0 {
		return err
	}
	var some []string
	for i := range all[:min(len(all), 3)] {
		some = append(some, fmt.Sprintf("%q (%q)", all[i].ID, all[i].Status))
	}
	printTo(c.err, "taskguard recover: %d never run and not found by recovery, as the status is none of QUEUED, PROCESSING, READY, FAILED (of at most %d read): %s; to run one: taskguard requeue ID\n",
		len(all), most, visible(strings.Join(some, ", ")))
	return nil
}

// tellRecovered prints what was done, also where failed is why not all was. To
// people, nothing found and a failure are not told as two things.
func (c *call) tellRecovered(r worker.Recovery, failed error) (err error) {
	switch {
	case c.json:
		return json.NewEncoder(c.out).Encode(recovered(r))
	case failed != nil && r.Found > 0:
		_, err = fmt.Fprintf(c.out, "found %d, booked %d; then it failed\n", r.Found, r.Booked)
	case failed != nil:
	case r.Booked < r.Found:
		_, err = fmt.Fprintf(c.out, "found %d, booked %d; %d booked already this hour, which --now books again\n", r.Found, r.Booked, r.Found-r.Booked)
	default:
		_, err = fmt.Fprintf(c.out, "found %d, booked %d\n", r.Found, r.Booked)
	}
	return err
}

// indexLink is in Firestore's words for a query that wants an index.
var indexLink = regexp.MustCompile(`https://\S+`)

// explainIndex puts the want of the index that recovery's query needs into
// words. Firestore refuses other things with the same code; only those words
// tell them apart, and any others are left as they are.
func (cl *client) explainIndex(err error) error {
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "index") {
		return err
	}
	link := ""
	if found := indexLink.FindString(err.Error()); found != "" {
		link = "at " + found + " or "
	}
	collection, database := cl.place.collection, ""
	if collection == "" {
		collection = "analyses"
	}
	if cl.place.database != "" {
		database = " --database=" + quoted(cl.place.database)
	}
	return fmt.Errorf("recovery's query needs an index of status and updatedAt, which Firestore lacks or is still building: make it %swith gcloud firestore indexes composite create --project=%s%s --collection-group=%s --field-config=field-path=status,order=ascending --field-config=field-path=updatedAt,order=ascending (see deploy/README.md)",
		link, quoted(cl.place.project), database, quoted(path.Base(collection)))
}
