package firestore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var readOnly = &firestorepb.TransactionOptions{Mode: &firestorepb.TransactionOptions_ReadOnly_{
	ReadOnly: &firestorepb.TransactionOptions_ReadOnly{},
}}

var transactionCases = []conformanceCase{
	{"TransactionReadsAndWrites", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"n": 1})
		err := r.client.RunTransaction(r.ctx, func(_ context.Context, tx *client.Transaction) error {
			snap, err := tx.Get(ref)
			if err != nil {
				return err
			}
			return tx.Update(ref, []client.Update{{Path: "n", Value: snap.Data()["n"].(int64) + 1}})
		})
		wantCode(t, err, codes.OK)
		wantData(t, r.get(t, ref), object{"n": int64(2)})
	}},
	{"FailedTransactionWritesNothing", func(t *testing.T, r *rig) {
		ref, refusal := r.doc(t, nil), errors.New("refused")
		err := r.client.RunTransaction(r.ctx, func(_ context.Context, tx *client.Transaction) error {
			return errors.Join(tx.Set(ref, object{"n": 1}), refusal)
		})
		if !errors.Is(err, refusal) {
			t.Errorf("error %v, want %v", err, refusal)
		}
		wantData(t, r.get(t, ref), nil)
	}},
	{"UnknownTransactionIsInvalid", func(t *testing.T, r *rig) {
		ref := r.doc(t, nil)
		for _, id := range [][]byte{[]byte("nope"), {}} {
			_, err := r.read(id, ref)
			wantCode(t, err, codes.InvalidArgument)
			wantCode(t, r.rollback(id), codes.InvalidArgument)
		}
		_, err := r.commit([]byte("nope"), put(ref, 1))
		wantCode(t, err, codes.InvalidArgument)
	}},
	{"EndedTransactionIsInvalidButMayBeRolledBack", func(t *testing.T, r *rig) {
		ref := r.doc(t, nil)
		committed, rolledBack, refused := r.begin(t), r.begin(t), r.begin(t)
		must[*firestorepb.CommitResponse](t)(r.commit(committed, put(ref, 1)))
		wantCode(t, r.rollback(rolledBack), codes.OK)
		w := put(ref, 2)
		w.CurrentDocument = &firestorepb.Precondition{ConditionType: &firestorepb.Precondition_Exists{}}
		_, err := r.commit(refused, w)
		wantCode(t, err, codes.AlreadyExists)
		for _, txn := range [][]byte{committed, rolledBack, refused} {
			_, err := r.commit(txn, put(ref, 3))
			wantCode(t, err, codes.InvalidArgument)
			_, err = r.read(txn, ref)
			wantCode(t, err, codes.InvalidArgument)
			wantCode(t, r.rollback(txn), codes.OK)
		}
	}},
	{"TransactionBelongsToItsDatabase", func(t *testing.T, r *rig) {
		_, err := r.raw.Commit(r.ctx, &firestorepb.CommitRequest{Database: r.database + "2", Transaction: r.begin(t)})
		wantCode(t, err, codes.InvalidArgument)
	}},
	{"ReadBeginsATransaction", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"n": 1})
		answers := must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.batchGet(&firestorepb.BatchGetDocumentsRequest{
			Database: r.database, Documents: []string{ref.Path},
			ConsistencySelector: &firestorepb.BatchGetDocumentsRequest_NewTransaction{NewTransaction: &firestorepb.TransactionOptions{
				Mode: &firestorepb.TransactionOptions_ReadWrite_{ReadWrite: &firestorepb.TransactionOptions_ReadWrite{}},
			}},
		}))
		if len(answers[0].Transaction) == 0 {
			t.Fatal("the first answer names no transaction")
		}
		must[*firestorepb.CommitResponse](t)(r.commit(answers[0].Transaction, put(ref, 2)))
	}},
	{"ReadOnlyTransactionSeesTheStateItBeganWith", func(t *testing.T, r *rig) {
		changed, deleted, created := r.doc(t, object{"n": 1}), r.doc(t, object{"n": 1}), r.doc(t, nil)
		begun := must[*firestorepb.BeginTransactionResponse](t)(r.raw.BeginTransaction(r.ctx, &firestorepb.BeginTransactionRequest{
			Database: r.database, Options: readOnly,
		}))
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(begun.Transaction, changed))
		must[*client.WriteResult](t)(changed.Set(r.ctx, object{"n": 2}))
		must[*client.WriteResult](t)(deleted.Delete(r.ctx))
		must[*client.WriteResult](t)(created.Set(r.ctx, object{"n": 2}))
		answers := must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(begun.Transaction, changed, deleted, created))
		exist := 0
		for _, a := range answers {
			if a.GetFound() != nil {
				exist++
				if n := a.GetFound().Fields["n"].GetIntegerValue(); n != 1 {
					t.Errorf("%s has n = %d, want 1", a.GetFound().Name, n)
				}
			}
		}
		if exist != 2 {
			t.Errorf("%d documents exist, want 2", exist)
		}
		if got := r.query(t, begun.Transaction, &firestorepb.StructuredQuery{From: from("c")}); len(got) != 2 {
			t.Errorf("a query finds %v, want 2 documents", got)
		}
		_, err := r.commit(begun.Transaction, put(changed, 3))
		wantCode(t, err, codes.InvalidArgument)
		must[*firestorepb.CommitResponse](t)(r.commit(begun.Transaction))
	}},
}

// blocked starts a commit that must not end before release has been called, and
// returns its error.
func blocked(t *testing.T, r *rig, release func(), writes ...*firestorepb.Write) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := r.commit(nil, writes...)
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("the commit ended beside a lock: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	release()
	return <-done
}

var lockCases = []conformanceCase{
	{"WriteWaitsForAReader", func(t *testing.T, r *rig) {
		for _, ref := range []*client.DocumentRef{r.doc(t, object{"n": 1}), r.doc(t, nil)} {
			txn := r.begin(t)
			must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(txn, ref))
			err := blocked(t, r, func() { wantCode(t, r.rollback(txn), codes.OK) }, put(ref, 2))
			wantCode(t, err, codes.OK)
		}
	}},
	{"WriteGivesUpOnAReaderThatStays", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"n": 1})
		txn := r.begin(t)
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(txn, ref))
		_, err := r.commit(nil, put(ref, 2))
		wantCode(t, err, codes.Aborted)
		must[*firestorepb.CommitResponse](t)(r.commit(txn, put(ref, 3)))
		wantData(t, r.get(t, ref), object{"n": int64(3)})
	}},
	{"LocksComeBeforePreconditionsAndNoOps", func(t *testing.T, r *rig) {
		ref, missing := r.doc(t, object{"n": 1}), r.doc(t, nil)
		read := r.get(t, ref).UpdateTime
		must[*client.WriteResult](t)(ref.Set(r.ctx, object{"n": 2}))
		txn := r.begin(t)
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(txn, ref, missing))
		var all sync.WaitGroup
		for name, write := range map[string]func() error{
			"stale": func() error {
				_, err := ref.Update(r.ctx, []client.Update{{Path: "n", Value: 3}}, client.LastUpdateTime(read))
				return err
			},
			"exists already": func() error { _, err := ref.Create(r.ctx, object{"n": 3}); return err },
			"no change":      func() error { _, err := r.commit(nil, put(ref, 2)); return err },
			"nothing there":  func() error { _, err := missing.Delete(r.ctx); return err },
		} {
			all.Go(func() {
				if err := write(); status.Code(err) != codes.Aborted {
					t.Errorf("%s: %v, want Aborted", name, err)
				}
			})
		}
		all.Wait()
		wantCode(t, r.rollback(txn), codes.OK)
	}},
	{"ACommitRefusedUnreadKeepsItsTransaction", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"n": 1})
		txn := r.begin(t)
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(txn, ref))
		_, err := r.commit(txn, putFields(ref.Path, fields{"__x__": integerValue(1)}))
		wantCode(t, err, codes.InvalidArgument)
		_, err = r.commit(nil, put(ref, 2))
		wantCode(t, err, codes.Aborted)
		must[*firestorepb.CommitResponse](t)(r.commit(txn, put(ref, 3)))
		wantData(t, r.get(t, ref), object{"n": int64(3)})
	}},
	{"InsertWaitsForAQueryThatWouldFindIt", func(t *testing.T, r *rig) {
		txn := r.begin(t)
		r.query(t, txn, &firestorepb.StructuredQuery{From: from("c")})
		err := blocked(t, r, func() { wantCode(t, r.rollback(txn), codes.OK) }, put(r.doc(t, nil), 2))
		wantCode(t, err, codes.OK)
	}},
	{"ReadersDoNotWaitForAWriterThatWaits", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"n": 1})
		txn, other := r.begin(t), r.begin(t)
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(txn, ref))
		err := blocked(t, r, func() {
			must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(other, ref))
			must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(nil, ref))
			wantCode(t, r.rollback(other), codes.OK)
			wantCode(t, r.rollback(txn), codes.OK)
		}, put(ref, 2))
		wantCode(t, err, codes.OK)
	}},
	{"OfTwoTransactionsOnOneDocumentOneCommits", func(t *testing.T, r *rig) {
		a, b := r.doc(t, object{"n": 1}), r.doc(t, object{"n": 1})
		for _, writes := range [][2]*firestorepb.Write{{put(a, 2), put(a, 3)}, {put(b, 4), put(a, 5)}} {
			txns := [2][]byte{r.begin(t), r.begin(t)}
			must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(txns[0], a))
			must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(txns[1], a, b))
			var ok, aborted atomic.Int32
			var both sync.WaitGroup
			for i := range txns {
				both.Go(func() {
					switch _, err := r.commit(txns[i], writes[i]); status.Code(err) {
					case codes.OK:
						ok.Add(1)
					case codes.Aborted:
						aborted.Add(1)
					}
				})
				time.Sleep(50 * time.Millisecond)
			}
			both.Wait()
			if ok.Load() != 1 || aborted.Load() != 1 {
				t.Errorf("%d committed, %d aborted, want one of each", ok.Load(), aborted.Load())
			}
		}
	}},
	{"CommitsOfTransactionsAreSerialized", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"n": 0})
		var all sync.WaitGroup
		var done atomic.Int64
		for range 4 {
			all.Go(func() {
				err := r.client.RunTransaction(r.ctx, func(_ context.Context, tx *client.Transaction) error {
					snap, err := tx.Get(ref)
					if err != nil {
						return err
					}
					return tx.Set(ref, object{"n": snap.Data()["n"].(int64) + 1})
				}, client.MaxAttempts(10))
				if err == nil {
					done.Add(1)
				}
			})
		}
		all.Wait()
		if done.Load() == 0 {
			t.Error("no transaction committed")
		}
		wantData(t, r.get(t, ref), object{"n": done.Load()})
	}},
}

var raceCases = []conformanceCase{
	{"Of128ConditionalUpdatesOneWins", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"owner": -1})
		var all, read sync.WaitGroup
		var won, lost atomic.Int32
		read.Add(128)
		for i := range 128 {
			all.Go(func() {
				snap, err := ref.Get(r.ctx)
				read.Done()
				if err != nil {
					t.Errorf("get: %v", err)
					return
				}
				read.Wait()
				_, err = ref.Update(r.ctx, []client.Update{{Path: "owner", Value: i}}, client.LastUpdateTime(snap.UpdateTime))
				switch status.Code(err) {
				case codes.OK:
					won.Add(1)
				case codes.FailedPrecondition:
					lost.Add(1)
				default:
					t.Errorf("update: %v", err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 || lost.Load() != 127 {
			t.Errorf("%d won, %d lost, want 1 and 127", won.Load(), lost.Load())
		}
	}},
	{"IncrementsAreNotLost", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"n": 0})
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				if _, err := ref.Update(r.ctx, []client.Update{{Path: "n", Value: client.Increment(1)}}); err != nil {
					t.Errorf("increment: %v", err)
				}
			})
		}
		all.Wait()
		wantData(t, r.get(t, ref), object{"n": int64(64)})
	}},
}
