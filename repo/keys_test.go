package repo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// A number is one key, whether a program writes it as an integer or as a double.
func TestConcurrency_Key(t *testing.T) {
	c := &Concurrency{Fields: []string{"account"}}
	for want, values := range map[string][]any{
		"1000000": {"1000000", int64(1_000_000), 1e6}, "1000000000000000000000": {1e21}, "1e6": {"1e6"},
		"0.5": {0.5}, "-2": {-2.0}, "true": {true}, "": {nil, "", doc{}, []any{"a"}, time.Now()},
	} {
		for _, v := range values {
			same(t, want, c.key(reading{fields: doc{"account": v}}), v)
		}
	}
	same(t, "a", c.key(reading{encoded: map[string]*value{"account": stringValue("a")}}), "as a part of the work")
}

// A record that a crash has left expires a day after its last slot. One for which somebody waits does not: without
// it, nobody would be woken.
func TestKeyCodec_Expiry(t *testing.T) {
	type key = analysislock.Key
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	slots := func(ends ...time.Duration) map[string]analysislock.Slotted {
		all := map[string]analysislock.Slotted{}
		for _, d := range ends {
			all[d.String()] = analysislock.Slotted{Lease: lease.Lease{Owner: d.String(), ExpiresAt: now.Add(d)}}
		}
		return all
	}
	one := slots(time.Minute)
	for name, tc := range map[string]struct {
		prev, next key
		want       any
	}{
		"two slots":       {key{}, key{Slots: slots(time.Minute, time.Hour)}, now.Add(25 * time.Hour)},
		"one waits":       {key{}, key{Slots: one, Waiting: true}, firestore.Delete},
		"one waits alone": {key{}, key{Waiting: true}, firestore.Delete},
		"nobody waits":    {key{Slots: one, Waiting: true}, key{Slots: one}, now.Add(24*time.Hour + time.Minute)},
		"no change":       {key{Slots: one}, key{Slots: one}, nil},
	} {
		same(t, tc.want, (keyCodec{}).changes(tc.prev, &tc.next, nil, now)["expireAt"], name)
	}
}

// The document of a key exists while a slot is taken or somebody waits.
func TestKeyStore(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		type key = analysislock.Key
		keys, at := openKeys(t, b).Keys.Store, time.Now().Truncate(time.Millisecond)
		same(t, cmp.Or(b.Collection, "analyses")+"Keys", keys.(keyStore).collection.ID)
		load := func() lease.Cell[key] {
			c := must.Get(keys.Load(t.Context(), "k", lease.OnlyLease))(t)
			return c
		}
		slot := func(owner string) analysislock.Slotted {
			l := lease.Lease{Owner: owner, Token: 1, HeartbeatAt: at, ExpiresAt: at.Add(time.Hour)}
			return analysislock.Slotted{Lease: l, Analysis: "of " + owner}
		}
		one := map[string]analysislock.Slotted{"w/1": slot("w/1")}
		two := map[string]analysislock.Slotted{"w/1": slot("w/1"), "w/2": slot("w/2")}
		prev := load()
		for _, next := range []key{
			{Value: "a", Limit: 2, Slots: one}, {Value: "a", Limit: 2, Slots: two, Waiting: true},
			{Value: "a", Waiting: true}, {Limit: analysislock.Paused, Slots: two}, {},
		} {
			must.OK(t, errorOf(keys.Swap(t.Context(), "k", prev, next)))
			wantErr(t, lease.ErrConflict, errorOf(keys.Swap(t.Context(), "k", prev, next)))
			prev = load()
			same(t, next, prev.Doc)
			same(t, next.Kept(), prev.Exists)
		}
	})
}

// parked returns a parked analysis of a tenant.
func parked(tenant string, at time.Time) doc {
	text := timeString(at)
	return doc{
		"status": "QUEUED", "tenant": tenant, "createdAt": text, "updatedAt": text,
		"parkedAt": text, "parkedFor": analysislock.KeyID(tenant) + " " + text,
	}
}

func TestKeyState_Before(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := openKeys(t, b)
		early := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for n := range 3 { // of the same second, so that the id decides
			b.Put(t, fmt.Sprint("a", n), parked("a", early.Add(time.Second)))
		}
		b.Put(t, "a3", parked("a", early))
		b.Put(t, "b0", parked("b", early))
		for id, want := range map[string]int64{"a3": 0, "a0": 1, "a2": 3, "b0": 0} {
			d := must.Get(a.Summary(t.Context(), id))(t)
			state := must.Get(a.KeyState(t.Context(), &d, true))(t)
			same(t, &want, state.Before)
		}
		for tenant, want := range map[string]string{"a": "a3 a0 a1 a2", "b": "b0"} {
			same(t, want, ids(must.Get(a.Keys.Parked(t.Context(), analysislock.KeyID(tenant), 10))(t)), tenant)
		}
	})
}

func TestKeyState_String(t *testing.T) {
	many := strings.Fields("0 1 2 3 4 5 6 7 8 9 10 11")
	for want, s := range map[string]KeyState{
		"": {},
		"parked behind key k: paused: the limit is 0; 1 run: a": {
			Key: "k", Parked: true, Paused: true, Running: []string{"a"},
		},
		"parked behind key k: 0 run; 1 waits before it": {Key: "k", Parked: true, Before: new(int64(1))},
		"parked behind key k: 1 of 2 run: a; kept for the next attempt of b": {
			Key: "k", Parked: true, Limit: 2, Running: []string{"a"}, Reserved: []string{"b"},
		},
		"parked behind key k: 12 run: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more; 1000 or more wait before it": {
			Key: "k", Parked: true, Running: many, Before: new(int64(MaxBefore)),
		},
	} {
		same(t, want, s.String())
	}
}

// A tenant's batch that waits on purpose is not the oldest one, and costs recovery a bounded number of reads.
func TestOldestUnfinished_Parked(t *testing.T) {
	for name, tc := range map[string]struct {
		parked int
		other  bool
		want   string // id; empty: none is found
	}{
		"none is parked":         {other: true, want: "other"},
		"all are parked":         {parked: 3},
		"the last that is found": {parked: maxParkedBefore - 1, other: true, want: "other"},
		"one too many":           {parked: maxParkedBefore, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := emulatortest.Embedded(t)
				a := openKeys(t, b)
				for n := range tc.parked {
					b.Put(t, fmt.Sprint("parked", n), parked("a", time.Now().Add(-2*time.Hour)))
				}
				if at := timeValue(time.Now().Add(-time.Hour)); tc.other {
					b.Put(t, "other", doc{"status": "QUEUED", "tenant": "a", "createdAt": at, "updatedAt": at})
				}
				before := b.Server.Usage().Reads
				oldest, _, err := a.OldestUnfinished(t.Context())
				must.OK(t, err)
				same(t, tc.want, oldest.ID)
				if reads := b.Server.Usage().Reads - before; reads > maxParkedBefore+10 {
					t.Errorf("made %d reads", reads)
				}
				same(t, int64(tc.parked), must.Get(a.CountParked(t.Context()))(t))
			})
		})
	}
}

// A thousand that are finished stay in the line, because another program has finished them. A search removes them, so
// that they do not hide the next one, and are not read again.
func TestParked_Finished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		a := openKeys(t, b)
		const dead = maxParkedReads + 50
		for n := range dead {
			at := time.Now().Add(time.Duration(n) * time.Second)
			b.Put(t, fmt.Sprint("x", n), with(parked("a", at), doc{"status": "READY"}))
		}
		b.Put(t, "next", parked("a", time.Now().Add(dead*time.Second)))
		for call, want := range []string{"", "next", "next"} {
			before := b.Server.Usage().Reads
			found := must.Get(a.Keys.Parked(t.Context(), analysislock.KeyID("a"), 1))(t)
			same(t, want, ids(found))
			if reads := b.Server.Usage().Reads - before; call == 2 && reads > 1 {
				t.Errorf("then a search made %d reads, want 1", reads)
			}
		}
		same(t, int64(1), must.Get(a.CountParked(t.Context()))(t))
	})
}

// A search returns the first in line, and no more than are wanted.
func TestParked_First(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := openKeys(t, b)
		for n, more := range []doc{
			nil, {"status": "READY"}, {"lockOwner": "w", "lockExpiresAt": time.Now().Add(time.Hour)}, nil, nil,
		} {
			b.Put(t, fmt.Sprint(n), with(parked("a", time.Now().Add(time.Duration(n)*time.Second)), more))
		}
		same(t, "0 3", ids(must.Get(a.Keys.Parked(t.Context(), analysislock.KeyID("a"), 2))(t)))
	})
}

// Ids of keys begin with any hexadecimal digit, the last one too.
func TestWakeable_LastKey(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		tenant := 0
		for !strings.HasPrefix(analysislock.KeyID(fmt.Sprint(tenant)), "ff") {
			tenant++
		}
		b.Put(t, "x", parked(fmt.Sprint(tenant), time.Now()))
		same(t, "x", ids(must.Get(openKeys(t, b).Wakeable(t.Context()))(t)))
	})
}

// One that is opened again after the search keeps its place.
func TestParked_Reopened(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := openKeys(t, b)
		b.Put(t, "x", with(parked("a", time.Now()), doc{"status": "READY"}))
		found := must.Get(a.documents.collection.Doc("x").Get(t.Context()))(t)
		b.Put(t, "x", parked("a", time.Now()))
		if err := leaveLine(t.Context(), found); err == nil {
			t.Error("it has left the line")
		}
		same(t, "x", ids(must.Get(a.Keys.Parked(t.Context(), analysislock.KeyID("a"), 1))(t)))
	})
}

// What recovery reads each minute does not grow with the parked analyses of a key, and they hide no orphan: a new
// one is found at once, one amid them after some calls. Those parked long ago cost a page in each call, and those
// parked a moment ago another.
func TestOrphaned_Parked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		a := openKeys(t, b)
		now, waiting := time.Now(), 8*parkedPage
		at := func(n int) time.Time { return now.Add(time.Duration(n)*time.Second - 32*time.Minute) }
		for n := range waiting {
			b.Put(t, fmt.Sprint("parked", n), parked("a", at(n)))
		}
		b.Put(t, "new", doc{"status": "QUEUED", "updatedAt": timeValue(now.Add(-6 * time.Minute))})
		b.Put(t, "amid", doc{"status": "QUEUED", "updatedAt": timeValue(at(waiting / 2))})

		found := ""
		for call := range waiting/parkedPage + 1 {
			before := b.Server.Usage().Reads
			due, more := orphaned(t, a, orphanPage)
			if call == 0 && !strings.Contains(due, "new") {
				t.Errorf("the first call found %q, want the new one", due)
			}
			same(t, false, more)
			found += " " + due
			if next, err := a.Wakeable(t.Context()); ids(next) != "parked0" {
				t.Errorf("%d can be woken, %v; want the first in line", len(next), err)
			}
			reads, most := b.Server.Usage().Reads-before, int64(2*parkedPage+keyWalks+10)
			if call > 5 { // five minutes later none was parked within the last ten
				most -= parkedPage
			}
			if reads > most {
				t.Errorf("call %d made %d reads, want at most %d, with %d parked", call, reads, most, waiting)
			}
			time.Sleep(time.Minute)
		}
		if !slices.Contains(strings.Fields(found), "amid") {
			t.Errorf("found %q, want the one amid them too", found)
		}
	})
}

// Recovery finds what can run of hundreds of keys in one call, although each key needs three round trips.
func TestWakeable_ManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		trip := func() { time.Sleep(40 * time.Millisecond) }
		slow := eachStream(func(s grpc.ClientStream) grpc.ClientStream { trip(); return s })
		a := openKeys(t, b, eachCall(trip), slow)
		const keys = 500
		for n := range keys {
			b.Put(t, fmt.Sprint("x", n), parked(fmt.Sprint("tenant", n), time.Now().Add(-time.Hour)))
		}
		same(t, keys, len(must.Get(a.Wakeable(t.Context()))(t)))
	})
}
