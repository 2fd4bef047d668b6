package repo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/locks/document"
)

// operation is one write of the lock on the analysis x, which begins with 3 attempts and
// the token 7.
type operation struct {
	acquired bool // before the operation
	again    bool // after a refusal, with less
	patient  bool // longer than a call may take
	do       func(t *testing.T, a *worker) error
	want     doc // the document after it, without the times
}

// result has what Firestore's paths would have to quote, and an array.
var result = doc{"n": int64(3), "a.b": []any{1.5, "ü"}, "`": nil}

var operations = map[string]operation{
	"acquire": {
		patient: true,
		do: func(t *testing.T, a *worker) error {
			t.Helper()
			acq, err := a.acquire(t.Context(), "x", "w/1")
			if err == nil {
				same(t, []any{lease.Grant{Owner: "w/1", Token: 8}, 4}, []any{acq.Grant, acq.Attempt})
			}
			return err
		},
		want: doc{"status": "PROCESSING", "attempts": int64(4), "lockToken": int64(8), "lockOwner": "w/1"},
	},
	"heartbeat": {
		acquired: true, patient: true,
		do:   func(t *testing.T, a *worker) error { return a.holds["w/1"].Renew(t.Context()) },
		want: doc{"status": "PROCESSING", "attempts": int64(4), "lockToken": int64(8), "lockOwner": "w/1"},
	},
	"report": {
		acquired: true, again: true,
		do: func(t *testing.T, a *worker) error {
			a.holds["w/1"].Send(analysislock.Checkpointed(&analysislock.Checkpoint{Value: "c"}))
			return a.holds["w/1"].Flush(t.Context())
		},
		want: doc{
			"status": "PROCESSING", "attempts": int64(4), "lockToken": int64(8), "lockOwner": "w/1", "checkpoint": "c",
		},
	},
	"finish": {
		acquired: true, patient: true,
		do: func(t *testing.T, a *worker) error { return a.complete(t, "w/1", result) },
		want: doc{
			"status": "READY", "attempts": int64(4), "lockToken": int64(8), "result": result, "finishedBy": "w/1",
		},
	},
	"release": {
		acquired: true,
		do:       func(t *testing.T, a *worker) error { return a.release(t, "w/1") },
		want:     doc{"status": "QUEUED", "attempts": int64(3), "lockToken": int64(8)},
	},
	"retry": {
		acquired: true, again: true,
		do: func(t *testing.T, a *worker) error { return a.retry(t) },
		want: doc{
			"status": "QUEUED", "attempts": int64(4), "lockToken": int64(8),
			"lastError": doc{"code": "c", "message": "m"},
		},
	},
}

var doubtful = []codes.Code{
	codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Internal, codes.Canceled,
	codes.Unknown, codes.Aborted, codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound,
}

// The first commit returns any code, and was made or not, or is never answered. The operation has the same
// result each time, and is applied once. Only a commit outside a transaction can be refused; then an
// acquisition is made again, before it finds that the document is full.
func TestAnalysisLock(t *testing.T) {
	for verb, op := range operations {
		for _, exclusive := range []bool{false, true} {
			run := func(name string, f fault, refused bool) {
				t.Run(fmt.Sprintf("%s/%s/exclusive=%v", verb, name, exclusive), func(t *testing.T) {
					inBubble(t, func(t *testing.T, b *backend) { op.runWith(t, b, f, exclusive, refused) })
				})
			}
			if op.patient {
				run("unanswered", unanswered, false)
			}
			for _, code := range doubtful {
				run(fmt.Sprint(code, "/carried out"), lost(code), false)
				refused := code == codes.InvalidArgument && !exclusive && verb != "acquire"
				if op.again && refused {
					continue // the lock is released, or renewed, without the message, or the checkpoint
				}
				run(fmt.Sprint(code, "/dropped"), dropped(code), refused)
			}
		}
	}
}

// runWith makes the operation with f as the fault of its commit, and checks the document.
func (op operation) runWith(t *testing.T, b *backend, f fault, exclusive, refused bool) {
	t.Helper()
	a, l := openFaulty(t, b)
	b.Put(t, "x", doc{"status": "QUEUED", "attempts": 3, "lockToken": 7, "theirs": 0})
	if op.acquired {
		mustAcquire(t, a, "x", "w/1")
		time.Sleep(time.Minute)
	}
	before, billed, began := b.Fields(t, "x"), b.Server.Usage().Writes, time.Now()
	plan, writes, theirs := faults{commit: {f}}, int64(1), int64(0)
	if exclusive {
		plan, writes, theirs = exclusively(t, b, faults{exclusiveCommit: {f}}), 3, 2
	}
	l.inject(plan)
	err := op.do(t, a)
	l.wantAllInjected(t)
	billed = b.Server.Usage().Writes - billed
	got := b.Fields(t, "x")
	if refused {
		same(t, before, got)
		same(t, int64(0), billed, "writes")
		wantErr(t, lease.ErrRefused, err)
		return
	}

	check(t, err)
	same(t, writes, billed, "writes")
	if op.want["lockOwner"] != nil {
		heartbeat, _ := parseTime(got["lockHeartbeatAt"])
		expires, _ := parseTime(got["lockExpiresAt"])
		if heartbeat.Before(began.Truncate(time.Millisecond)) || !expires.Equal(heartbeat.Add(lease.DefaultTTL)) {
			t.Errorf("heartbeat %v, expiry %v; the operation began at %v", heartbeat, expires, began)
		}
		delete(got, "lockHeartbeatAt")
		delete(got, "lockExpiresAt")
	}
	same(t, with(op.want, doc{"theirs": theirs}), withoutRuns(got))
}

// As TestAnalysisLock, of a document that the first commit creates, updates or deletes.
func TestRooms_UnknownOutcome(t *testing.T) {
	for verb, op := range map[string]struct {
		before, after string // its owner
		do            func(ctx context.Context, l *document.Locks) error
	}{
		"acquire": {"", "s/1", func(ctx context.Context, l *document.Locks) error {
			return errorOf(l.Acquire(ctx, "a", "s/1"))
		}},
		"renew": {"s/1", "s/1", func(ctx context.Context, l *document.Locks) error {
			return errorOf(l.Renew(ctx, "a", "s/1"))
		}},
		"release": {"s/1", "", func(ctx context.Context, l *document.Locks) error {
			return errorOf(l.Release(ctx, "a", "s/1"))
		}},
	} {
		run := func(name string, f fault) {
			t.Run(verb+"/"+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *backend) {
					bad := &faultyConn{}
					r := openRooms(t, b, bad.options()...)
					l := locksFor(t, r, 0)
					if op.before != "" {
						locked(t, l, "a", op.before)
						time.Sleep(10 * time.Second)
					}
					bad.inject(faults{commit: {f}})
					check(t, op.do(t.Context(), l))
					bad.wantAllInjected(t)
					same(t, op.after, mustLoad(t, r).Doc.Owner)
				})
			})
		}
		for _, code := range doubtful {
			run(fmt.Sprint(code, "/carried out"), lost(code))
			if code != codes.InvalidArgument { // a refusal
				run(fmt.Sprint(code, "/dropped"), dropped(code))
			}
		}
	}
}

func TestDocuments_LargeResult(t *testing.T) {
	for kind, exclusive := range map[string]bool{commit: false, exclusiveCommit: true} {
		t.Run("after it the next is encoded, "+kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *backend) {
				a, l := openFaulty(t, b)
				if exclusive {
					a.decideInTransactions(t)
				}
				for i, id := range []string{"x", "y", "z"} {
					b.Put(t, id, doc{"status": "QUEUED"})
					mustAcquire(t, a, id, "w/1")
					l.inject(faults{kind: {dropped(codes.Aborted)}}) // its second try is encoded too
					began := time.Now()
					err := a.complete(t, "w/1", make([]any, largeResult+1))
					if err != nil || time.Since(began) > 4*time.Second {
						t.Fatalf("result %d: %v after %v", i, err, time.Since(began))
					}
					l.wantAllInjected(t)
				}
				if !a.documents.db.encoders.TryAcquire(1) {
					t.Error("the semaphore was not released")
				}
			})
		})
	}
	t.Run("it waits for another no longer than its caller", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *backend) {
			a := open(t, b)
			b.Put(t, "x", doc{"status": "QUEUED"})
			read := must.Get(a.documents.Load(t.Context(), "x", lease.OnlyLease))(t)
			large, small := read.Doc, read.Doc
			large.Status, large.Result = "READY", make([]any, largeResult+1)
			small.Status, small.Result = "READY", make([]any, largeResult/2)
			decide := func(lease.Cell[analysislock.Analysis]) (analysislock.Analysis, error) { return large, nil }
			must.OK(t, a.documents.db.encoders.Acquire(t.Context(), 1))
			soon, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := a.documents.Swap(soon, "y", read, small); !errors.Is(err, lease.ErrConflict) { // there is no y
				t.Errorf("%v: a write that is not large waits", err)
			}
			_, swapped := a.documents.Swap(soon, "x", read, large)
			_, excluded := a.documents.Exclude(soon, "x", lease.OnlyLease, decide)
			if swapped == nil || excluded == nil {
				t.Errorf("%v, %v; want the end of the caller's second", swapped, excluded)
			}
		})
	})
}

func TestDatabase_Read(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		tries := 0
		refuse := func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string,
			_ grpc.Streamer, _ ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			tries++
			sent, _ := metadata.FromOutgoingContext(ctx)
			same(t, []string{
				"projects/" + b.Project + "/databases/(default)",
				"database_id=%28default%29&project_id=" + b.Project,
			}, slices.Concat(sent["google-cloud-resource-prefix"], sent["x-goog-request-params"]))
			return nil, status.Error([]codes.Code{codes.Unavailable, codes.DeadlineExceeded}[tries%2], "")
		}
		a := open(t, b, grpc.WithChainStreamInterceptor(refuse))
		if _, err := a.Get(t.Context(), "x"); !errors.Is(err, lease.ErrUnavailable) || tries != 6 {
			t.Errorf("%d tries in %v, %v; want 6, at 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s", tries, callTimeout, err)
		}
	})
}

// The transaction of a process that has died locks the document for a minute. Those of the
// deliveries would lock it for each other after that.
func TestDocuments_Aborted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		b.Put(t, "x", doc{"status": "QUEUED"})
		go func() {
			_ = a.documents.db.client.RunTransaction(t.Context(),
				func(ctx context.Context, tx *firestore.Transaction) error {
					_, _ = tx.Get(a.documents.collection.Doc("x"))
					<-ctx.Done()
					return ctx.Err()
				})
		}()
		time.Sleep(time.Millisecond)
		wantErr(t, lease.ErrUnavailable, errorOf(a.acquire(t.Context(), "x", "w/1")))
		time.Sleep(time.Minute)
		mustAcquire(t, a, "x", "w/2")
		same(t, 1, b.Calls.Count("BeginTransaction"), "the dead one's")
	})
}
