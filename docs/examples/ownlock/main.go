// Command ownlock is the worker that a good engineer writes in an afternoon: a lock in a
// Firestore transaction, and no library. Its test shows five ways in which it fails. It is here
// for docs/compare.md. Do not copy it.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"cloud.google.com/go/firestore"
)

const lockTime = 5 * time.Minute

var errSkip = errors.New("finished, or locked by another worker")

type analysis struct {
	Status      string    `firestore:"status"`
	Input       string    `firestore:"input"`
	LockedBy    string    `firestore:"lockedBy"`
	LockedUntil time.Time `firestore:"lockedUntil"`
}

type worker struct {
	db      *firestore.Client
	analyze func(ctx context.Context, input string) (string, error)
	now     func() time.Time
}

// lock takes the lock of a document and returns the input.
func (w *worker) lock(ctx context.Context, doc *firestore.DocumentRef, owner string) (input string, err error) {
	err = w.db.RunTransaction(ctx, func(_ context.Context, tx *firestore.Transaction) error {
		var a analysis
		if err := read(tx, doc, &a); err != nil {
			return err
		}
		if a.Status == "READY" || a.LockedUntil.After(w.now()) {
			return errSkip
		}
		input = a.Input
		return tx.Update(doc, []firestore.Update{
			{Path: "status", Value: "PROCESSING"},
			{Path: "lockedBy", Value: owner},
			{Path: "lockedUntil", Value: w.now().Add(lockTime)},
		})
	})
	return input, err
}

// unlock frees the lock of a document if owner still has it.
func (w *worker) unlock(ctx context.Context, doc *firestore.DocumentRef, owner string) error {
	return w.db.RunTransaction(ctx, func(_ context.Context, tx *firestore.Transaction) error {
		var a analysis
		if err := read(tx, doc, &a); err != nil || a.LockedBy != owner {
			return err
		}
		return tx.Update(doc, []firestore.Update{
			{Path: "lockedBy", Value: firestore.Delete}, {Path: "lockedUntil", Value: firestore.Delete},
		})
	})
}

func read(tx *firestore.Transaction, doc *firestore.DocumentRef, a *analysis) error {
	snapshot, err := tx.Get(doc)
	if err != nil {
		return err
	}
	return snapshot.DataTo(a)
}

// ServeHTTP runs the analysis that a task of Cloud Tasks names.
func (w *worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var task struct {
		ID string `json:"analysis_id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&task); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, doc, owner := r.Context(), w.db.Collection("analyses").Doc(task.ID), rand.Text()

	input, err := w.lock(ctx, doc, owner)
	if errors.Is(err, errSkip) {
		return // 200: somebody else does it
	}
	if err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError) // Cloud Tasks tries again
		return
	}

	result, err := w.analyze(ctx, input)
	if err == nil {
		_, err = doc.Update(ctx, []firestore.Update{
			{Path: "status", Value: "READY"}, {Path: "result", Value: result},
		})
	}
	if err := errors.Join(err, w.unlock(ctx, doc, owner)); err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
	}
}

func main() {
	db, err := firestore.NewClient(context.Background(), os.Getenv("GOOGLE_CLOUD_PROJECT"))
	if err != nil {
		log.Fatal(err)
	}
	upper := func(_ context.Context, input string) (string, error) { return strings.ToUpper(input), nil }
	http.Handle("POST /internal/tasks/analysis", &worker{db, upper, time.Now})
	log.Fatal(http.ListenAndServe(":8080", nil))
}
