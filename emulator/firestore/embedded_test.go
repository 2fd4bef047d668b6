package firestore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"taskguard/emulator/firestore"
)

// inBubble runs f in a synctest bubble with a server of its own.
func inBubble(t *testing.T, f func(*testing.T, *rig, *firestore.Server)) {
	synctest.Test(t, func(t *testing.T) {
		server := firestore.NewServer(firestore.Options{})
		t.Cleanup(server.Close)
		f(t, newRig(t, dialServer(t, server)), server)
	})
}

func TestStoreClockMovesWithVirtualTime(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		ctx := context.Background()
		ref := r.client.Doc("c/d")
		before := must[*client.WriteResult](t)(ref.Set(ctx, object{"n": 1}))
		time.Sleep(300 * time.Second)
		snap := must[*client.DocumentSnapshot](t)(ref.Get(ctx))
		if passed := snap.ReadTime.Sub(before.UpdateTime); passed < 300*time.Second || passed > 301*time.Second {
			t.Errorf("the store's clock moved by %v, want 300 s", passed)
		}
	})
}

func TestIdleTransactionExpiresAfter60Seconds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		r.ctx = context.Background()
		ref := r.doc(t, object{"n": 1})
		used, idle := r.begin(t), r.begin(t)
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(idle, ref))
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(used, r.doc(t, nil)))
		time.Sleep(40 * time.Second)
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(used, r.doc(t, nil)))
		time.Sleep(19 * time.Second)
		start := time.Now()
		must[*firestorepb.CommitResponse](t)(r.commit(nil, put(ref, 2)))
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("the write waited %v for the lock, want 1s", waited)
		}
		_, err := r.commit(idle, put(ref, 3))
		wantCode(t, err, codes.InvalidArgument)
		must[*firestorepb.CommitResponse](t)(r.commit(used, put(ref, 4)))
	})
}

func TestCancelledWriteLeavesTheQueueForALock(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		r.ctx = context.Background()
		ref := r.doc(t, object{"n": 1})
		txn := r.begin(t)
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(txn, ref))
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		_, err := ref.Set(ctx, object{"n": 2})
		wantCode(t, err, codes.DeadlineExceeded)
		wantCode(t, r.rollback(txn), codes.OK)
		time.Sleep(time.Minute)
		wantData(t, r.get(t, ref), object{"n": int64(1)})
	})
}

func TestDeadlockEndsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		r.ctx = context.Background()
		ref := r.doc(t, object{"n": 1})
		first, second := r.begin(t), r.begin(t)
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(first, ref))
		must[[]*firestorepb.BatchGetDocumentsResponse](t)(r.read(second, ref))
		start := time.Now()
		var waiting sync.WaitGroup
		waiting.Go(func() {
			_, err := r.commit(first, put(ref, 2))
			wantCode(t, err, codes.OK)
		})
		synctest.Wait()
		_, err := r.commit(second, put(ref, 3))
		wantCode(t, err, codes.Aborted)
		waiting.Wait()
		if waited := time.Since(start); waited != 0 {
			t.Errorf("resolved after %v, want at once", waited)
		}
	})
}

func TestRequestOver10MiBIsInvalid(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		r.ctx = context.Background()
		var writes []*firestorepb.Write
		for i := range 11 {
			f := fields{"f": textValue(string(make([]byte, 1_000_000)))}
			writes = append(writes, putFields(r.name(fmt.Sprintf("c/%d", i)), f))
		}
		_, err := r.commit(nil, writes...)
		wantCode(t, err, codes.InvalidArgument)
		must[*firestorepb.CommitResponse](t)(r.commit(nil, writes[:10]...))
	})
}

// Google's emulator lets these pass; the service does not.
func TestTransformsKeepToTheLimitsOfValues(t *testing.T) {
	server := firestore.NewServer(firestore.Options{})
	t.Cleanup(server.Close)
	r := newRig(t, dialServer(t, server))
	ref := r.doc(t, object{"n": 1})
	deep := strings.Repeat("a.", 20) + "a"
	_, err := ref.Update(r.ctx, []client.Update{{Path: deep, Value: client.Increment(1)}})
	wantCode(t, err, codes.OK)
	_, err = ref.Update(r.ctx, []client.Update{{Path: deep + ".a", Value: client.Increment(1)}})
	wantCode(t, err, codes.InvalidArgument)
	_, err = ref.Update(r.ctx, []client.Update{{Path: "n", Value: client.ArrayUnion([]any{1})}})
	wantCode(t, err, codes.InvalidArgument)
	_, err = r.commit(nil, putFields("projects/other/databases/(default)/documents/c/d", nil))
	wantCode(t, err, codes.InvalidArgument)
}

func TestClockNeverRunsBackwards(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 999, time.UTC)
	server := firestore.NewServer(firestore.Options{Now: func() time.Time { now = now.Add(-time.Hour); return now }})
	t.Cleanup(server.Close)
	r := newRig(t, dialServer(t, server))
	var last time.Time
	for n := range 5 {
		wrote := must[*client.WriteResult](t)(r.client.Doc("c/d").Set(r.ctx, object{"n": n})).UpdateTime
		read := r.get(t, r.client.Doc("c/none")).ReadTime
		if !wrote.After(last) || read.Before(wrote) || wrote.Nanosecond()%1000 != 0 {
			t.Errorf("written at %v after %v, read at %v", wrote, last, read)
		}
		last = read
	}
}

func TestUsageCountsWhatIsBilled(t *testing.T) {
	server := firestore.NewServer(firestore.Options{})
	t.Cleanup(server.Close)
	r := newRig(t, dialServer(t, server))
	a, b := r.client.Doc("c/a"), r.client.Doc("c/b")
	step := func(name string, err error, code codes.Code, want firestore.Usage) {
		wantCode(t, err, code)
		if got := server.Usage(); got != want {
			t.Errorf("after %s: %+v, want %+v", name, got, want)
		}
	}
	_, err := a.Create(r.ctx, object{})
	step("a create", err, codes.OK, firestore.Usage{Writes: 1})
	_, err = a.Create(r.ctx, object{})
	step("a refused create", err, codes.AlreadyExists, firestore.Usage{Writes: 1})
	_, err = a.Get(r.ctx)
	step("a get", err, codes.OK, firestore.Usage{Reads: 1, Writes: 1})
	_, err = b.Get(r.ctx)
	step("a get of a missing document", err, codes.NotFound, firestore.Usage{Reads: 2, Writes: 1})
	_, err = b.Create(r.ctx, object{})
	step("a second create", err, codes.OK, firestore.Usage{Reads: 2, Writes: 2})
	_, err = r.found(r.client.Collection("c").Query)
	step("a query of two", err, codes.OK, firestore.Usage{Reads: 4, Writes: 2})
	_, err = r.found(r.client.Collection("d").Query)
	step("a query of none", err, codes.OK, firestore.Usage{Reads: 5, Writes: 2})
	_, err = a.Delete(r.ctx)
	step("a delete", err, codes.OK, firestore.Usage{Reads: 5, Writes: 2, Deletes: 1})
}

func TestCloseEndsCallsAndLeavesNothingRunning(t *testing.T) {
	before := goleak.IgnoreCurrent()
	server := firestore.NewServer(firestore.Options{})
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn := must[interface{ Close() error }](t)(waitingWrite(t, server))
	server.Close()
	server.Close()
	if err := <-served; err != nil {
		t.Errorf("serve ended with %v, want nil", err)
	}
	if _, err := server.Dial(); err == nil {
		t.Error("a closed server can be dialed")
	}
	if err := server.Serve(listen(t)); err != nil {
		t.Errorf("serve after close ended with %v, want nil", err)
	}
	_ = conn.Close()
	goleak.VerifyNone(t, before)
}

// waitingWrite leaves a commit waiting for a lock. It ends with the server.
func waitingWrite(t *testing.T, server *firestore.Server) (interface{ Close() error }, error) {
	conn, err := server.Dial()
	if err != nil {
		return nil, err
	}
	r := &rig{ctx: context.Background(), raw: firestorepb.NewFirestoreClient(conn), database: "projects/p/databases/d"}
	request := &firestorepb.BatchGetDocumentsRequest{
		Database: r.database, Documents: []string{r.name("c/d")},
		ConsistencySelector: &firestorepb.BatchGetDocumentsRequest_Transaction{Transaction: r.begin(t)},
	}
	if _, err := r.batchGet(request); err != nil {
		return nil, err
	}
	sent := make(chan struct{})
	go func() {
		close(sent)
		_, err := r.commit(nil, putFields(r.name("c/d"), nil))
		if err == nil {
			t.Error("the commit passed a lock")
		}
	}()
	<-sent
	return conn, nil
}
