package repo

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
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

func TestAnOperatorsChanges(t *testing.T) {
	cases := map[string]func(t *testing.T, b *emulatortest.Backend, a *worker){
		"CreateMakesAQueuedAnalysisOnce": func(t *testing.T, _ *emulatortest.Backend, a *worker) {
			fatal(t, a.Create(t.Context(), "x", map[string]any{"n": int64(1)}, CreateOptions{}))
			for _, input := range []any{"another", map[string]any{"n": int64(1)}} {
				if err := a.Create(t.Context(), "x", input, CreateOptions{}); !errors.Is(err, ErrExists) {
					t.Errorf("a second with %v: %v, want ErrExists", input, err)
				}
			}
			d, err := a.Get(t.Context(), "x")
			if err != nil || d.Status != analysislock.Queued || d.CreatedAt.IsZero() || !d.CreatedAt.Equal(d.UpdatedAt) {
				t.Errorf("get = %+v, %v", d, err)
			}
			if err := a.Create(t.Context(), "a/b", nil, CreateOptions{}); !errors.Is(err, lease.ErrInvalidKey) {
				t.Errorf("another path: %v", err)
			}
		},
		"ADeletedAnalysisIsLostToItsRunAlsoIfItIsCreatedAgain": func(t *testing.T, b *emulatortest.Backend, a *worker) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued})
			read, err := a.documents.Load(t.Context(), "x", lease.OnlyLease)
			fatal(t, err)
			mustAcquire(t, a, "x", "w/1")
			if _, err := a.documents.remove(t.Context(), "x", read); !errors.Is(err, lease.ErrConflict) {
				t.Errorf("delete what was acquired after the reading: %v, want ErrConflict", err)
			}
			var held *lease.HeldError
			if _, err := a.Delete(t.Context(), "x"); !errors.As(err, &held) || held.Owner != "w/1" {
				t.Errorf("delete during a run: %v, want HeldError", err)
			}
			if _, err := a.Cancel(t.Context(), "x", "me", nil); err != nil {
				t.Fatal(err)
			}
			if was, err := a.Delete(t.Context(), "x"); err != nil || was.Status != analysislock.Failed {
				t.Errorf("delete = %+v, %v", was, err)
			}
			if _, err := a.Delete(t.Context(), "x"); !errors.Is(err, lease.ErrNotFound) {
				t.Errorf("again: %v, want ErrNotFound", err)
			}
			fatal(t, a.Create(t.Context(), "x", nil, CreateOptions{}))
			if err := a.holds["w/1"].End(t.Context(), analysislock.Completing(a.holds["w/1"].Now(), "late")); !errors.Is(err, lease.ErrLost) {
				t.Errorf("the holder's finish: %v, want ErrLost", err)
			}
		},
		"TheActsDecideAndNotTheirCount": func(t *testing.T, b *emulatortest.Backend, a *worker) {
			act := map[string]any{"charge": map[string]any{"state": "started", "token": 1}}
			for _, tc := range []struct {
				effects, count any
				want           error
			}{{act, nil, analysislock.ErrUncertain}, {act, 0, analysislock.ErrUncertain}, {act, "one", analysislock.ErrUncertain}, {nil, 7, nil}, {nil, true, nil}} {
				doc := map[string]any{"status": analysislock.Failed, "openEffects": tc.count}
				if tc.effects != nil {
					doc["effects"] = tc.effects
				}
				b.Put(t, "x", doc)
				if d, err := a.Summary(t.Context(), "x"); err != nil || (d.OpenActs > 0) != (tc.want != nil) {
					t.Errorf("%v: %d acts are open, %v", doc, d.OpenActs, err)
				}
				_, fresh := a.Requeue(t.Context(), "x", "", nil, true, "")
				_, resolved := a.Resolve(t.Context(), "x", "", nil, "charge", analysislock.Answer{}, "")
				if left := b.Fields(t, "x"); !errors.Is(fresh, tc.want) || (resolved == nil) != (tc.want != nil) || left["effects"] != nil || left["openEffects"] != nil && left["openEffects"] != int64(0) {
					t.Errorf("%v: requeue --fresh: %v, resolve: %v, and then %v", doc, fresh, resolved, left)
				}
				b.Put(t, "x", doc)
				if _, err := a.Delete(t.Context(), "x"); !errors.Is(err, tc.want) {
					t.Errorf("%v: delete: %v, want %v", doc, err, tc.want)
				}
			}
		},
		"AChangeIsMadeOfWhatWasSeenAlone": func(t *testing.T, b *emulatortest.Backend, a *worker) {
			was := analysislock.Seen{Status: analysislock.Processing, Grant: lease.Grant{Owner: "w/1", Token: 6}}
			for name, change := range operatorsChanges {
				want := map[string]string{"cancel": analysislock.Failed}[name]
				b.Put(t, "x", map[string]any{"status": was.Status, "lockOwner": was.Grant.Owner, "lockToken": was.Grant.Token, "lockExpiresAt": "2000-01-01T00:00:00Z"})
				before := b.Fields(t, "x")
				for _, other := range []analysislock.Seen{
					{Grant: was.Grant}, {Status: analysislock.Ready, Grant: was.Grant}, {Status: was.Status},
					{Status: was.Status, Grant: lease.Grant{Owner: "w/1"}}, {Status: was.Status, Grant: lease.Grant{Owner: "w/1", Token: 7}}, {Status: was.Status, Grant: lease.Grant{Owner: "w/2", Token: 6}},
				} {
					if err := change(t.Context(), a, &other); !errors.Is(err, lease.ErrConflict) {
						t.Errorf("%s of %+v: %v, want ErrConflict", name, other, err)
					}
				}
				same(t, before, b.Fields(t, "x"))
				err := change(t.Context(), a, &was)
				if got := b.Fields(t, "x"); err != nil || got["lockOwner"] != nil || got["status"] != cmp.Or(want, analysislock.Queued) {
					t.Errorf("%s: %v, and the document is %v", name, err, got)
				}
			}
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) { test(t, b, open(t, b)) })
		})
	}
}

func TestAChangeIsNotMadeIfAnotherProgramChangedTheAnalysisFirst(t *testing.T) {
	for name, others := range map[string]func(t *testing.T, b *emulatortest.Backend, a *worker){
		"changed likewise": nil,
		"finished": func(t *testing.T, _ *emulatortest.Backend, a *worker) {
			check(t, a.holds["w/1"].End(t.Context(), analysislock.Completing(a.holds["w/1"].Now(), "result")))
		},
		"finished by who leaves the lock as it is": func(t *testing.T, b *emulatortest.Backend, _ *worker) {
			b.Merge(t, "x", map[string]any{"status": analysislock.Ready, "result": "precious"})
		},
		"passed on": func(t *testing.T, b *emulatortest.Backend, _ *worker) {
			b.Merge(t, "x", map[string]any{"lockOwner": "w/2", "lockToken": 8})
		},
	} {
		for verb, change := range operatorsChanges {
			t.Run(verb+", "+name, func(t *testing.T) {
				b := emulatortest.Embedded(t)
				a, conn := openFaulty(t, b)
				b.Put(t, "x", map[string]any{"status": analysislock.Queued, "lockToken": 6})
				seen := analysislock.Seen{Status: analysislock.Processing, Grant: mustAcquire(t, a, "x", "w/1").Grant}
				b.Merge(t, "x", map[string]any{"lockExpiresAt": "2000-01-01T00:00:00Z"}) // or a requeue is refused
				var since map[string]any
				conn.inject(map[string][]fault{commit: {overtaken(func() {
					if others != nil {
						others(t, b, a)
					} else {
						check(t, change(t.Context(), a, &seen))
					}
					since = b.Fields(t, "x")
				})}})
				if err := change(t.Context(), a, &seen); !errors.Is(err, lease.ErrConflict) {
					t.Errorf("%v, want ErrConflict", err)
				}
				same(t, since, b.Fields(t, "x"))
			})
		}
	}
	b := emulatortest.Embedded(t)
	a, conn := openFaulty(t, b)
	b.Put(t, "x", map[string]any{"status": analysislock.Processing, "lockToken": 6, "lockOwner": "w/0", "lockExpiresAt": "2000-01-01T00:00:00Z"})
	conn.inject(map[string][]fault{commit: {overtaken(func() { mustAcquire(t, a, "x", "w/1") })}})
	_, err := a.Unlock(t.Context(), "x", "", nil, "")
	if f := b.Fields(t, "x"); err != nil || f["lockOwner"] != "w/1" {
		t.Errorf("an unlock of any state freed a lock that was stolen meanwhile: %v, %v", f, err)
	}
}

// A status of another program is kept until the finish. No status, QUEUED and
// PROCESSING become PROCESSING, and QUEUED with the release.
func TestAStatusOfAnotherProgramIsKeptUntilTheFinish(t *testing.T) {
	step := map[string]any{"step": int64(1)}
	for _, tc := range []struct{ status, held, free any }{
		{nil, analysislock.Processing, analysislock.Queued},
		{"", analysislock.Processing, analysislock.Queued},
		{analysislock.Queued, analysislock.Processing, analysislock.Queued},
		{"queued", "queued", "queued"},
		{int64(5), int64(5), int64(5)},
		{step, step, step},
	} {
		b := emulatortest.Embedded(t)
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": tc.status})
		mustAcquire(t, a, "x", "w/1")
		held := b.Fields(t, "x")["status"]
		check(t, a.holds["w/1"].End(t.Context(), analysislock.Releasing(a.holds["w/1"].Now(), analysislock.OutcomeRetry, "", false)))
		free := b.Fields(t, "x")["status"]
		mustAcquire(t, a, "x", "w/2")
		check(t, a.holds["w/2"].End(t.Context(), analysislock.Completing(a.holds["w/2"].Now(), "done")))
		same(t, []any{tc.held, tc.free, analysislock.Ready}, []any{held, free, b.Fields(t, "x")["status"]})
	}
}

func TestUnlockReplacesATokenThatIsNoIntegerAndDeletesAnUnreadableLock(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for id, fields := range map[string]map[string]any{
			"held":       {"status": analysislock.Processing, "lockOwner": "js/1", "lockToken": "seven", "lockExpiresAt": timeValue(time.Now().Add(time.Hour))},
			"free":       {"status": analysislock.Queued, "lockToken": true},
			"huge":       {"status": analysislock.Queued, "lockToken": int64(1<<63 - 1)},
			"foreign":    {"status": "ANALYZING", "lockToken": []any{"x"}},
			"unreadable": {"status": analysislock.Processing, "lockOwner": true, "lockToken": 1.5, "lockHeartbeatAt": "yesterday", "lockExpiresAt": []any{1}},
		} {
			b.Put(t, id, fields)
			if _, err := a.acquire(t.Context(), id, "w/1"); !errors.Is(err, lease.ErrMalformed) {
				t.Errorf("%s: acquire: %v, want ErrMalformed", id, err)
			}
			earlier := time.Now().Add(-time.Hour).UnixMicro()
			if _, err := a.Unlock(t.Context(), id, "", nil, ""); err != nil {
				t.Errorf("%s: unlock: %v", id, err)
			}
			got := b.Fields(t, id)
			for _, field := range []string{"lockOwner", "lockHeartbeatAt", "lockExpiresAt"} {
				if v, found := got[field]; found {
					t.Errorf("%s: %s = %v", id, field, v)
				}
			}
			if acq := mustAcquire(t, a, id, "w/2"); acq.Grant.Token < earlier {
				t.Errorf("%s: token %d, want microseconds of the time", id, acq.Grant.Token)
			}
		}
	})
}

// If a large input makes the worker crash, the attempt has been counted.
func TestTheInputIsReceivedAfterTheCommitThatCountsTheAttempt(t *testing.T) {
	for kind, exclusive := range map[string]bool{commit: false, exclusiveCommit: true} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			l, counted := &faultyConn{}, false
			a := open(t, b, l.options()...)
			a.again = true
			b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "i"})
			reads := []fault{nil, func(_ context.Context, do func() error) error { // the decision's, and the input's
				if !counted {
					t.Errorf("%s: the input is received before the commit's answer", kind)
				}
				return do()
			}}
			if exclusive {
				a.decideInTransactions(t)
				reads = append([]fault{nil, nil}, reads[1:]...)
			}
			l.inject(map[string][]fault{read: reads, kind: {func(ctx context.Context, do func() error) error {
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
