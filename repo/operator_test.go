package repo

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// operatorsChanges are changes of x, if it is as it was seen.
var operatorsChanges = map[string]func(ctx context.Context, a *worker, seen *analysislock.Seen) error{
	"unlock": func(ctx context.Context, a *worker, seen *analysislock.Seen) error {
		return errorOf(a.Unlock(ctx, "x", "", seen, ""))
	},
	"requeue": func(ctx context.Context, a *worker, seen *analysislock.Seen) error {
		return errorOf(a.Requeue(ctx, "x", "", seen, false, ""))
	},
	"cancel": func(ctx context.Context, a *worker, seen *analysislock.Seen) error {
		return errorOf(a.Cancel(ctx, "x", "ana", seen))
	},
}

func TestCreate(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		must.OK(t, a.Create(t.Context(), "x", doc{"n": int64(1)}, CreateOptions{}))
		wantErr(t, ErrExists, a.Create(t.Context(), "x", "another", CreateOptions{}))
		wantErr(t, lease.ErrInvalidKey, a.Create(t.Context(), "a/b", nil, CreateOptions{}))
		d := must.Get(a.Get(t.Context(), "x"))(t)
		same(t, []any{"QUEUED", doc{"n": int64(1)}}, []any{d.Status, d.Input})
		if d.CreatedAt.IsZero() || !d.CreatedAt.Equal(d.UpdatedAt) {
			t.Errorf("created at %v, updated at %v", d.CreatedAt, d.UpdatedAt)
		}
	})
}

// The client sends a creation whose reply is lost again, and then finds the analysis that it has created.
func TestCreate_LostReply(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		a, conn := openFaulty(t, b)
		conn.inject(faults{commit: {lost(codes.Unavailable)}})
		wantErr(t, ErrExists, a.Create(t.Context(), "x", "input", CreateOptions{}))
		same(t, "input", must.Get(a.Get(t.Context(), "x"))(t).Input)
	})
}

func TestDelete(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		b.Put(t, "x", doc{"status": "QUEUED"})
		read := must.Get(a.documents.Load(t.Context(), "x", lease.OnlyLease))(t)
		mustAcquire(t, a, "x", "w/1")
		wantErr(t, lease.ErrConflict, errorOf(a.documents.remove(t.Context(), "x", read)))
		if _, err := a.Delete(t.Context(), "x"); !errors.As(err, new(*lease.HeldError)) {
			t.Errorf("during a run: %v, want HeldError", err)
		}
		must.OK(t, errorOf(a.Cancel(t.Context(), "x", "me", nil)))
		same(t, "FAILED", must.Get(a.Delete(t.Context(), "x"))(t).Status)
		wantErr(t, lease.ErrNotFound, errorOf(a.Delete(t.Context(), "x")))
		must.OK(t, a.Create(t.Context(), "x", nil, CreateOptions{}))
		wantErr(t, lease.ErrLost, a.complete(t, "w/1", "late"))
	})
}

// The client sends a deletion whose reply is lost again, and then finds that its first try has made it.
func TestDelete_LostReply(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(t *testing.T, b *backend, l *faultyConn)
		want error
	}{
		"and it is gone": {
			func(*testing.T, *backend, *faultyConn) {}, nil,
		},
		"and others have created it again": {
			func(t *testing.T, b *backend, _ *faultyConn) { b.Put(t, "x", doc{"status": "READY"}) }, lease.ErrConflict,
		},
		"and then Firestore does not answer": {
			func(_ *testing.T, _ *backend, l *faultyConn) { l.stopAnswering() }, lease.ErrUnavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *backend) {
				a, l := openFaulty(t, b)
				b.Put(t, "x", doc{"status": "QUEUED"})
				second := func(_ context.Context, do func() error) error {
					defer tc.then(t, b, l)
					return do()
				}
				l.inject(faults{commit: {lost(codes.Unavailable), second}})
				was, err := a.Delete(t.Context(), "x")
				wantErr(t, tc.want, err)
				same(t, "QUEUED", was.Status)
				l.wantAllInjected(t)
			})
		})
	}
}

func TestAnOperatorsChanges(t *testing.T) {
	t.Run("the acts decide, and not their count", func(t *testing.T) {
		emulatortest.EachKind(t, func(t *testing.T, b *backend) {
			a := open(t, b)
			act := doc{"charge": doc{"state": "started", "token": 1}}
			for _, tc := range []struct {
				effects, count any
				want           error
			}{
				{act, nil, analysislock.ErrUncertain}, {act, 0, analysislock.ErrUncertain},
				{act, "one", analysislock.ErrUncertain}, {nil, 7, nil}, {nil, true, nil},
			} {
				was := doc{"status": "FAILED", "openEffects": tc.count}
				if tc.effects != nil {
					was["effects"] = tc.effects
				}
				b.Put(t, "x", was)
				same(t, tc.want != nil, must.Get(a.Summary(t.Context(), "x"))(t).OpenActs > 0, was)
				wantErr(t, tc.want, errorOf(a.Requeue(t.Context(), "x", "", nil, true, "")), was)
				_, err := a.Resolve(t.Context(), "x", "", nil, "charge", analysislock.Answer{}, "")
				same(t, tc.want != nil, err == nil, was, err)
				left := b.Fields(t, "x")
				if count, _ := left["openEffects"].(int64); count != 0 || left["effects"] != nil {
					t.Errorf("%v: then it is %v", was, left)
				}
				b.Put(t, "x", was)
				wantErr(t, tc.want, errorOf(a.Delete(t.Context(), "x")), was)
			}
		})
	})
	t.Run("a change is made of what was seen alone", func(t *testing.T) {
		emulatortest.EachKind(t, func(t *testing.T, b *backend) {
			type grant = lease.Grant
			a, was := open(t, b), analysislock.Seen{Status: "PROCESSING", Grant: grant{Owner: "w/1", Token: 6}}
			for name, change := range operatorsChanges {
				b.Put(t, "x", doc{
					"status": was.Status, "lockOwner": was.Grant.Owner, "lockToken": was.Grant.Token,
					"lockExpiresAt": "2000-01-01T00:00:00Z",
				})
				before := b.Fields(t, "x")
				for _, other := range []analysislock.Seen{
					{Grant: was.Grant}, {Status: "READY", Grant: was.Grant}, {Status: was.Status},
					{Status: was.Status, Grant: grant{Owner: "w/1", Token: 7}},
					{Status: was.Status, Grant: grant{Owner: "w/2", Token: 6}},
				} {
					wantErr(t, lease.ErrConflict, change(t.Context(), a, &other), name, other)
				}
				same(t, before, b.Fields(t, "x"))
				check(t, change(t.Context(), a, &was))
				want := cmp.Or(map[string]string{"cancel": "FAILED"}[name], "QUEUED")
				got := b.Fields(t, "x")
				same(t, []any{nil, want}, []any{got["lockOwner"], got["status"]}, name)
			}
		})
	})
}

// Another program changes the analysis between the reading and the commit.
func TestAnOperatorsChanges_Overtaken(t *testing.T) {
	stale := doc{"lockExpiresAt": "2000-01-01T00:00:00Z"} // or a requeue is refused
	for name, others := range map[string]func(t *testing.T, b *backend, a *worker){
		"finished": func(t *testing.T, _ *backend, a *worker) { check(t, a.complete(t, "w/1", "result")) },
		"finished by who leaves the lock": func(t *testing.T, b *backend, _ *worker) {
			b.Merge(t, "x", doc{"status": "READY", "result": "precious"})
		},
		"passed on": func(t *testing.T, b *backend, _ *worker) {
			b.Merge(t, "x", doc{"lockOwner": "w/2", "lockToken": 8})
		},
		"unlocked": func(t *testing.T, _ *backend, a *worker) {
			check(t, errorOf(a.Unlock(t.Context(), "x", "", nil, "")))
		},
	} {
		for verb, change := range operatorsChanges {
			t.Run(verb+", "+name, func(t *testing.T) {
				b := emulatortest.Embedded(t)
				a, conn := openFaulty(t, b)
				b.Put(t, "x", doc{"status": "QUEUED", "lockToken": 6})
				seen := analysislock.Seen{Status: "PROCESSING", Grant: mustAcquire(t, a, "x", "w/1").Grant}
				b.Merge(t, "x", stale)
				var since doc
				conn.inject(faults{commit: {overtaken(func() {
					others(t, b, a)
					since = b.Fields(t, "x")
				})}})
				wantErr(t, lease.ErrConflict, change(t.Context(), a, &seen))
				same(t, since, b.Fields(t, "x"))
			})
		}
	}
	t.Run("an unlock of any state frees no lock that was stolen meanwhile", func(t *testing.T) {
		b := emulatortest.Embedded(t)
		a, conn := openFaulty(t, b)
		b.Put(t, "x", with(stale, doc{"status": "PROCESSING", "lockToken": 6, "lockOwner": "w/0"}))
		conn.inject(faults{commit: {overtaken(func() { mustAcquire(t, a, "x", "w/1") })}})
		check(t, errorOf(a.Unlock(t.Context(), "x", "", nil, "")))
		same(t, any("w/1"), b.Fields(t, "x")["lockOwner"])
	})
}

func TestUnlock_Malformed(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		for id, fields := range map[string]doc{
			"held":       {"lockToken": "seven", "lockOwner": "js/1", "lockExpiresAt": time.Now().Add(time.Hour)},
			"free":       {"lockToken": true},
			"unreadable": {"lockToken": 1.5, "lockOwner": true, "lockHeartbeatAt": "x", "lockExpiresAt": []any{1}},
		} {
			b.Put(t, id, with(doc{"status": "PROCESSING"}, fields))
			wantErr(t, lease.ErrMalformed, errorOf(a.acquire(t.Context(), id, "w/1")), id)
			check(t, errorOf(a.Unlock(t.Context(), id, "", nil, "")))
			got := b.Fields(t, id)
			same(t, []any{nil, nil, nil}, []any{got["lockOwner"], got["lockHeartbeatAt"], got["lockExpiresAt"]})
			earlier := time.Now().Add(-time.Hour).UnixMicro()
			if acq := mustAcquire(t, a, id, "w/2"); acq.Grant.Token < earlier {
				t.Errorf("%s: token %d, want microseconds of the time", id, acq.Grant.Token)
			}
		}
	})
}

// If a large input makes the worker crash, the attempt has been counted.
func TestWork_AfterTheCommit(t *testing.T) {
	for kind, exclusive := range map[string]bool{commit: false, exclusiveCommit: true} {
		inBubble(t, func(t *testing.T, b *backend) {
			a, l := openFaulty(t, b)
			counted := false
			a.again = true
			b.Put(t, "x", doc{"status": "QUEUED", "input": "i"})
			input := func(_ context.Context, do func() error) error {
				if !counted {
					t.Errorf("%s: the input is received before the commit's answer", kind)
				}
				return do()
			}
			reads := []fault{nil, input} // the decision's, and the input's
			if exclusive {
				a.decideInTransactions(t)
				reads = []fault{nil, nil, input}
			}
			l.inject(faults{read: reads, kind: {func(ctx context.Context, do func() error) error {
				err := slowReply(ctx, do)
				counted = true
				return err
			}}})
			mustAcquire(t, a, "x", "w/1")
			a.runs(t, "w/1")
			l.wantAllInjected(t)
		})
	}
}
