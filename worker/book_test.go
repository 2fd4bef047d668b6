package worker_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// submitOrder creates an order and its work in one transaction.
func submitOrder(t *testing.T, b *emulatortest.Backend, k worker.Kind, doc *firestore.DocumentRef) {
	t.Helper()
	client, err := firestore.NewClient(t.Context(), b.Project, b.Client(t)...)
	if err != nil {
		t.Fatal(err)
	}
	fields, err := worker.NewDocument(k, map[string]any{"order": doc.ID})
	if err == nil {
		err = client.RunTransaction(t.Context(), func(_ context.Context, tx *firestore.Transaction) error {
			return errors.Join(tx.Create(client.Doc("orders/"+doc.ID), map[string]any{"n": 1}), tx.Create(doc, fields))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestWorkIsSubmittedInTheCallersTransaction(t *testing.T) {
	for name, k := range map[string]worker.Kind{"analysis": {Run: succeed}, "another vocabulary": jobs(succeed)} {
		synctest.Test(t, func(t *testing.T) {
			b, q := emulatortest.Embedded(t), worker.StartQueue(t)
			g, without := open(t, b, q.Use), open(t, b, nil)
			var serving atomic.Bool
			routes := g.Routes(k)
			q.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !serving.Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				routes.ServeHTTP(w, r)
			}))
			docs, status, queued, ready := collection(t, b, "analyses"), "status", "QUEUED", "READY"
			if k.Name == "job" {
				docs, status, queued, ready = collection(t, b, "jobs"), "state", "PENDING", "DONE"
			}
			book := func(g *worker.Guard, id string, want error, tasks int) {
				t.Helper()
				if err := worker.Book(t.Context(), g, k, id); !errors.Is(err, want) || len(q.Tasks()) != tasks {
					t.Errorf("%s: book %s: %v, want %v; tasks %q, want %d", name, id, err, want, q.Tasks(), tasks)
				}
			}

			book(g, "x", lease.ErrNotFound, 0)
			book(g, "a/b", lease.ErrInvalidKey, 0)
			committed := time.Now()
			submitOrder(t, b, k, docs.Doc("x"))
			submitOrder(t, b, k, docs.Doc("y")) // at the same time
			checkRecord(t, docs.Doc("x"), map[string]any{status: queued, "createdAt": committed, "updatedAt": committed})
			book(without, "x", worker.ErrNotBooked, 0)
			q.Fail(codes.PermissionDenied)
			book(g, "x", worker.ErrNotBooked, 0)
			q.Fail(codes.OK)

			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					if err := worker.Book(t.Context(), g, k, "x"); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
			time.Sleep(time.Minute)
			book(g, "x", nil, 1)
			book(g, "y", nil, 2)
			serving.Store(true)
			time.Sleep(10 * time.Minute)
			checkRecord(t, docs.Doc("x"), map[string]any{status: ready, "createdAt": committed})
			if at, ok := fields(t, docs.Doc("x"))["updatedAt"].(time.Time); !ok || !at.After(committed) {
				t.Errorf("%s: updatedAt is not a later Timestamp", name)
			}
			set(t, docs.Doc("finished"), map[string]any{status: ready})
			book(g, "finished", nil, 2)
		})
	}
}

func TestANewDocumentIsRefusedLikeASubmission(t *testing.T) {
	var permanent *orchestrator.PermanentError
	if _, err := worker.NewDocument(worker.Kind{}, [][]int{{1}}); !errors.As(err, &permanent) {
		t.Errorf("an array in an array: %v", err)
	}
	if _, err := worker.NewDocument(worker.Kind{Name: "job"}, 1); err == nil {
		t.Error("a kind without a collection is accepted")
	}
}
