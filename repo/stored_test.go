package repo

import (
	"context"
	"maps"
	"path"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/locks/document"
)

// storing collects what the commits of a client set, by collection.
type storing map[string]map[string]bool

func (s storing) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if commit, ok := req.(*firestorepb.CommitRequest); ok && err == nil {
		for _, w := range commit.GetWrites() {
			kind := path.Base(path.Dir(w.GetUpdate().GetName()))
			if s[kind] == nil {
				s[kind] = map[string]bool{}
			}
			for _, line := range emulatortest.Stored(w) {
				s[kind][line] = true
			}
		}
	}
	return err
}

// Every field that is stored is in the list, and every field of the list is stored: so nobody adds, changes or removes
// one without a thought about the workers of the version before, which share the documents.
func TestStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stored := storing{}
		client := emulatortest.Embedded(t)
		dial := func() grpc.DialOption { return grpc.WithChainUnaryInterceptor(stored.unary) }
		slots := 0
		a, err := Open(t.Context(), client.Project, Options{
			Policy: lease.Policy{MaxAttempts: 10}, Keep: 48 * time.Hour, KeepAll: true,
			Concurrency: &Concurrency{Fields: []string{"tenant"}, Limit: func(string) int { return slots }},
		}, client.Client(t, dial())...)
		must.OK(t, err)
		storeAnalyses(t, a, client, &slots)

		rooms := must.Get(OpenRooms(t.Context(), client.Project, Options{}, client.Client(t, dial())...))(t)
		storeRooms(t, rooms)

		for collection, kind := range map[string]string{
			"analyses": "analysis", "analysesKeys": "key", "documentLocks": "room",
		} {
			want := emulatortest.ReadStored(t, "..", kind)
			for _, line := range slices.Sorted(maps.Keys(stored[collection])) {
				if !slices.Contains(want, line) {
					t.Errorf("%s: the list has no line: %s %s", emulatortest.StoredFile, kind, line)
				}
			}
			for _, line := range want {
				if !stored[collection][line] {
					t.Errorf("%s: nothing has stored: %s %s", emulatortest.StoredFile, kind, line)
				}
			}
		}
	})
}

// storeAnalyses leads analyses through everything that changes a field.
func storeAnalyses(t *testing.T, a *Analyses, others *emulatortest.Backend, slots *int) {
	t.Helper()
	ctx := t.Context()
	take := func(id, owner string, o analysislock.AcquireOptions) analysislock.Acquisition {
		t.Helper()
		got := must.Get(a.AcquireAnalysisLock(ctx, id, owner, 0, o))(t)
		return got
	}
	must.OK(t, a.Create(ctx, "created", "input", CreateOptions{Params: "params", Task: "task"}))
	for _, id := range []string{"a", "b", "killer"} {
		others.Put(t, id, map[string]any{"status": "QUEUED", "tenant": id, "createdAt": timeValue(time.Now())})
	}

	// Without a slot it is parked. Then an attempt marks an act, and fails without being counted.
	take("a", "parked", analysislock.AcquireOptions{})
	*slots = 10
	got := take("a", "1", analysislock.AcquireOptions{Alone: true})
	hold := got.Hold
	token := hold.Grant().Token
	for _, name := range []string{"told", "lost", "open"} {
		begin := &analysislock.Beginning{Name: name, Token: token, Now: hold.Now()}
		hold.Send(begin.Change(nil))
		must.OK(t, hold.Renew(ctx))
	}
	half, now := 0.5, hold.Now()
	told := &analysislock.Act{State: analysislock.ActDone, Result: []byte("1")}
	lost := &analysislock.Act{State: analysislock.ActDone, ResultError: "no room"}
	hold.Send(
		analysislock.ActEnded("told", token, now, told, nil), analysislock.ActEnded("lost", token, now, lost, nil),
		analysislock.Progressed(analysislock.Progress{Fraction: &half, Message: "half", At: now}),
		analysislock.Checkpointed(&analysislock.Checkpoint{Value: "page 2"}))
	must.OK(t, hold.End(ctx, analysislock.Retrying(now, "code", "message", now.Add(time.Minute), "task", true)))
	must.OK(t, errorOf(a.Leave(ctx, got.Slot, hold.Now())))

	// It is started elsewhere, unlocked by an operator, and fails.
	time.Sleep(time.Hour)
	must.OK(t, errorOf(a.Start(ctx, "a", "starter", func(context.Context) error { return nil })))
	take("a", "2", analysislock.AcquireOptions{})
	must.OK(t, errorOf(a.Unlock(ctx, "a", "operator@example.com", nil, "task")))
	hold = take("a", "3", analysislock.AcquireOptions{}).Hold
	must.OK(t, hold.End(ctx, analysislock.Failing(hold.Now(), "code", "message")))

	hold = take("b", "4", analysislock.AcquireOptions{}).Hold
	must.OK(t, hold.End(ctx, analysislock.Completing(hold.Now(), "result")))

	// Two crashes make it a suspect, which is delayed.
	for _, owner := range []string{"5", "6"} {
		take("killer", owner, analysislock.AcquireOptions{})
		time.Sleep(time.Hour)
	}
	skipped := take("killer", "7", analysislock.AcquireOptions{SkipSuspects: true})
	must.OK(t, errorOf(a.Delay(ctx, skipped, time.Minute, func(time.Time) string { return "task" })))
}

// storeRooms locks a room, which a program that needs no lock has unlocked.
func storeRooms(t *testing.T, rooms *Rooms) {
	t.Helper()
	locks := locksFor(t, rooms, 0)
	profile := document.Profile{Name: "Name", User: "user"}
	must.OK(t, errorOf(locks.AcquireAs(t.Context(), "a", "owner", profile)))
	must.OK(t, errorOf(locks.Unlock(t.Context(), "a")))
}
