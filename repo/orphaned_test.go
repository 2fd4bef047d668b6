package repo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
)

// orphaned returns the ids that Orphaned returns, in this order, and whether there may be more.
func orphaned(t testing.TB, a *worker, limit int) (found string, more bool) {
	t.Helper()
	due, more, err := a.Orphaned(t.Context(), limit)
	must.OK(t, err)
	words := make([]string, len(due))
	for i := range due {
		words[i] = due[i].Doc.ID
	}
	return strings.Join(words, " "), more
}

func wantOrphaned(t testing.TB, a *worker, limit int, want string, more bool) {
	t.Helper()
	got, gotMore := orphaned(t, a, limit)
	same(t, []any{want, more}, []any{got, gotMore})
}

// Documents of workers, and of other programs, by their ids.
func TestOrphaned(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		now := time.Now()
		old, ahead := now.Add(-ttl(b)-2*time.Second), now.Add(25*time.Hour)
		fresh, zone := now.Add(time.Minute), time.FixedZone("", -12*3600) // a slow machine may need longer than a TTL
		expired, held := timeValue(old), timeValue(now.Add(time.Hour))
		late, waits := timeValue(now.Add(-ttl(b)-time.Second)), timeValue(now.Add(time.Minute-ttl(b)))
		const never = "9999-01-01T00:00:00Z"
		queued := func(more doc) doc { return with(doc{"status": "QUEUED", "updatedAt": expired}, more) }
		crashed := func(more doc) doc {
			return with(queued(doc{"status": "PROCESSING", "lockOwner": "js/1", "lockExpiresAt": expired}), more)
		}
		theirs := func(next any) doc { return doc{"status": "ANALYZING", "nextAttemptAt": next} }
		found := map[string]doc{
			"queued":               queued(nil),
			"queued_never":         queued(doc{"nextAttemptAt": never}),
			"queued_unreadable":    queued(doc{"nextAttemptAt": "soon"}),
			"updated_timestamp":    queued(doc{"updatedAt": old}),
			"updated_millis":       queued(doc{"updatedAt": old.UnixMilli()}),
			"updated_ahead":        queued(doc{"updatedAt": timeValue(ahead)}),
			"crashed":              crashed(nil),
			"crashed_unreadable":   crashed(doc{"lockHeartbeatAt": expired, "lockExpiresAt": true}),
			"theirs_crashed":       crashed(doc{"status": "ANALYZING"}),
			"theirs_crashed_never": crashed(doc{"status": "X", "lockExpiresAt": never, "lockHeartbeatAt": expired}),
			"theirs_late":          theirs(late),
			"theirs_waits_never":   theirs(never),
			"theirs_waits_micros":  theirs(now.UnixMicro()),
		}
		others := map[string]doc{
			"queued_waits":          queued(doc{"nextAttemptAt": waits}),
			"queued_fresh":          queued(doc{"updatedAt": timeValue(fresh)}),
			"queued_fresh_zone":     queued(doc{"updatedAt": fresh.In(zone).Format(time.RFC3339)}),
			"queued_malformed":      queued(doc{"lockToken": "secret"}),
			"queued_undated":        {"status": "QUEUED"},
			"updated_23_hours":      queued(doc{"updatedAt": now.Add(23 * time.Hour)}),
			"updated_micros":        queued(doc{"updatedAt": old.UnixMicro()}), // unreadable; see Unfound
			"updated_ahead_waits":   queued(doc{"updatedAt": ahead, "nextAttemptAt": waits}),
			"held":                  crashed(doc{"lockExpiresAt": held}),
			"theirs":                queued(doc{"status": "ARCHIVED"}),
			"theirs_waits":          theirs(waits),
			"theirs_waits_23_hours": theirs(timeValue(now.Add(23 * time.Hour))),
			"theirs_waits_crashed":  crashed(doc{"status": "ANALYZING", "nextAttemptAt": waits}),
			"theirs_late_held":      crashed(doc{"status": "ANALYZING", "nextAttemptAt": late, "lockExpiresAt": held}),
			"ready_late":            queued(doc{"status": "READY", "nextAttemptAt": late}),
			"failed_crashed":        crashed(doc{"status": "FAILED"}),
			"without_status":        {"updatedAt": expired},
			"a\x01b":                queued(nil), // Firestore holds this id, and no delivery can name it
		}
		want := []string{}
		for id, fields := range found {
			b.Put(t, id, fields)
			want = append(want, id)
		}
		for id, fields := range others {
			b.Put(t, id, fields)
		}
		slices.Sort(want)
		got, _ := orphaned(t, open(t, b), 1000)
		same(t, strings.Join(want, " "), sorted(got))
	})
}

func TestOrphaned_Limit(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		ago := func(minutes int) time.Time { return time.Now().Add(-time.Duration(minutes) * time.Minute) }
		for id, minutes := range map[string]int{"b": 180, "c": 120, "a": 240, "d": 60} {
			b.Put(t, id, doc{"status": "QUEUED", "updatedAt": timeValue(ago(minutes))})
		}
		wantOrphaned(t, a, 3, "a b c", true)
		b.Put(t, "t", doc{"status": "PROCESSING", "updatedAt": ago(150)}) // Firestore sorts Timestamps first
		wantOrphaned(t, a, 1000, "t a b c d", false)
	})
}

func TestOrphaned_Pages(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		now, waiting := time.Now(), 100
		if !b.Google() { // more than a page, with its boundary among the strings
			waiting = orphanPage + 100
		}
		for i := range waiting {
			updated := storedForms(now.Add(-2 * time.Hour))[i%2] // strings, and Timestamps, which are first
			next := timeValue(now.Add(time.Hour))
			b.Put(t, fmt.Sprint(i), doc{"status": "QUEUED", "nextAttemptAt": next, "updatedAt": updated})
		}
		b.Put(t, "x", doc{"status": "QUEUED", "updatedAt": timeValue(now.Add(-time.Hour))})
		wantOrphaned(t, open(t, b), orphanPage, "x", false)
	})
}

// Another program, or another call of recovery, may change the analysis between the reading and the mark.
func TestMarkDue(t *testing.T) {
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of a bubble's time
	now, later := timeValue(begin), timeValue(begin.Add(time.Hour))
	for name, tc := range map[string]struct {
		others doc
		marked bool
	}{
		"unchanged":                   {doc{}, true},
		"another field changed":       {doc{"theirs": 1}, true},
		"its holder renewed the lock": {doc{"lockExpiresAt": later}, false},
		"acquired and released":       {doc{"lockToken": 7, "updatedAt": now}, false},
		"released by another program": {doc{"status": "QUEUED", "updatedAt": now}, false},
		"booked by an operator":       {doc{"bookedTask": "theirs", "updatedAt": now}, false},
		"parked":                      {doc{"parkedAt": now, "parkedFor": "k 1", "updatedAt": now}, false},
		"finished":                    {doc{"status": "READY"}, false},
		"marked by another call":      {doc{"nextAttemptAt": now, "bookedTask": "t", "updatedAt": now}, false},
		"deleted":                     {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *backend) {
				a, old := openKeys(t, b), timeValue(begin.Add(-time.Hour))
				b.Put(t, "x", doc{"status": "PROCESSING", "updatedAt": old, "lockOwner": "w", "lockExpiresAt": old})
				due, _, err := a.Orphaned(t.Context(), 10)
				must.OK(t, err)
				if tc.others != nil {
					b.Merge(t, "x", tc.others)
				} else {
					b.Delete(t, "x")
				}
				time.Sleep(2 * time.Millisecond) // so that two marks differ
				before := b.Fields(t, "x")
				task, err := a.MarkDue(t.Context(), due[0], timeString)
				got := b.Fields(t, "x")
				want, refusal := before, lease.ErrConflict
				if tc.marked {
					marks := doc{"nextAttemptAt": task, "bookedTask": task, "updatedAt": got["updatedAt"]}
					want, refusal = with(before, marks), nil
				}
				same(t, want, got)
				wantErr(t, refusal, err)
				wantOrphaned(t, a, 10, "", false)
			})
		})
	}
}

func TestOrphaned_Malformed(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		old := timeValue(time.Now().Add(-time.Hour))
		for i := range maxWarnings + 1 {
			b.Put(t, fmt.Sprint("bad", i), doc{"status": "QUEUED", "updatedAt": old, "lockToken": "secret"})
		}
		b.Put(t, "good", doc{"status": "QUEUED", "updatedAt": old})
		log, text := logTo()
		wantOrphaned(t, openWith(t, b, Options{Log: log}), 100, "good", false)
		n := strings.Count(text.String(), "analysis_id=bad")
		if n != maxWarnings || strings.Contains(text.String(), "secret") {
			t.Errorf("log %s\nwant a line for each of the first %d, without the value", text, maxWarnings)
		}
	})
}

// The query that may read many waiting analyses has its own time limit, and is the last. It continues where
// it stopped, so that they hide nobody for ever.
func TestOrphaned_Slow(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		took := 6 * time.Second
		slow := grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn,
			method string, open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			if strings.HasSuffix(method, "RunQuery") {
				time.Sleep(took)
			}
			return open(ctx, d, cc, method, opts...)
		})
		began := time.Now()
		ago := func(minutes int) any { return timeValue(began.Add(-time.Duration(minutes) * time.Minute)) }
		queued := func(id string, minutes int, more doc) {
			b.Put(t, id, with(doc{"status": "QUEUED", "updatedAt": ago(minutes)}, more))
		}
		for n := range 25 { // more than a page before what is ordinary, and after it
			queued(fmt.Sprint("waits", n), 7+n%2*2, doc{"nextAttemptAt": ago(-60)})
		}
		queued("crashed", 6, doc{"status": "PROCESSING", "lockOwner": "w", "lockExpiresAt": ago(1)})
		queued("purged", 8, doc{"nextAttemptAt": ago(7)})
		a := open(t, b, slow)
		if got, more := orphaned(t, a, 10); sorted(got) != "crashed purged" || !more {
			t.Errorf("%s, more %v; want what the other queries find, and more", got, more)
		}
		b.Delete(t, "crashed")
		b.Delete(t, "purged")
		queued("end", 6, nil)
		wantOrphaned(t, open(t, b, slow), 10, "end", true) // by a new process

		b.Delete(t, "end")
		queued("malformed", 9, doc{"lockToken": "7"})
		for range 2 { // it returns to its beginning
			queued("ordinary", 8, nil)
			got, more := "", true
			for calls := 0; calls < 4 && got == ""; calls++ {
				got, more = orphaned(t, a, 10)
			}
			if got != "ordinary" || !more {
				t.Errorf("%s, more %v; want the one between them", got, more)
			}
			b.Delete(t, "ordinary")
		}

		took = 11 * time.Second
		if _, more, err := a.Orphaned(t.Context(), 10); !more || !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("more %v, %v; want ErrUnavailable, as nothing was read", more, err)
		}
	})
}

// What expires and what is orphaned is decided by Firestore's clock.
func TestOrphaned_Clock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"a slow worker": time.Hour, "a fast worker": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				theirs := func() time.Time { return time.Now().Add(ahead) }
				server := firestore.NewServer(firestore.Options{Now: theirs})
				t.Cleanup(server.Close)
				b := &backend{Project: emulatortest.Project(), Server: server, Calls: &emulatortest.Calls{}}
				at := func(d time.Duration) any { return timeValue(theirs().Add(d)) }
				hour := at(-time.Hour)
				for id, fields := range map[string]doc{
					"old":     {"status": "QUEUED", "updatedAt": at(-lease.DefaultTTL - time.Second)},
					"fresh":   {"status": "QUEUED", "updatedAt": at(-lease.DefaultTTL + time.Second)},
					"held":    {"status": "QUEUED", "updatedAt": hour, "lockOwner": "w", "lockExpiresAt": at(1e9)},
					"expired": {"status": "QUEUED", "updatedAt": hour, "lockOwner": "w", "lockExpiresAt": at(-1)},
				} {
					b.Put(t, id, fields)
				}
				a := open(t, b)
				wantOrphaned(t, a, 10, "expired old", false)
				o := Options{Collection: "analyses"}
				rooms := must.Get(OpenRooms(t.Context(), b.Project, o, b.Client(t)...))(t)
				lapsed := must.Get(rooms.Lapsed(t.Context(), 10))(t)
				same(t, []any{1, "expired"}, []any{len(lapsed), lapsed[0].Room})
				running, _, _, _, _ := a.Active(t.Context(), 10)
				same(t, "held", ids(running))
				due, _, _ := a.Orphaned(t.Context(), 1)
				same(t, timeString(theirs()), must.Get(a.MarkDue(t.Context(), due[0], timeString))(t))
			})
		})
	}
}

// Without the composite index, Firestore's error contains a link that creates it. No emulator does this.
func TestOrphaned_MissingIndex(t *testing.T) {
	const link = "https://console.firebase.google.com/v1/r/project/p/firestore/indexes?create_composite=Ck"
	inBubble(t, func(t *testing.T, b *backend) {
		a, l := openFaulty(t, b)
		l.inject(faults{"RunQuery": {func(context.Context, func() error) error { // the first query alone
			return status.Error(codes.FailedPrecondition, "The query requires an index. You can create it here: "+link)
		}}})
		b.Put(t, "old", doc{"status": "QUEUED", "updatedAt": timeValue(time.Now().Add(-time.Hour))})
		due, more, err := a.Orphaned(t.Context(), 10)
		if !errors.Is(err, lease.ErrRefused) || !strings.Contains(err.Error(), link) {
			t.Errorf("%v, want ErrRefused with the link", err)
		}
		if len(due) != 1 || !more {
			t.Errorf("%+v, more %v; want the one that another query finds, and more", due, more)
		}
	})
}
