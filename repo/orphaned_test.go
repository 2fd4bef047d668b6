package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// orphaned returns the ids that Orphaned returns, in this order, and whether there may be more.
func orphaned(t testing.TB, a interface {
	Orphaned(ctx context.Context, limit int) ([]lease.Cell[analysislock.Analysis], bool, error)
}, limit int) (ids []string, more bool) {
	t.Helper()
	due, more, err := a.Orphaned(t.Context(), limit)
	fatal(t, err)
	for i := range due {
		ids = append(ids, due[i].Doc.ID)
	}
	return ids, more
}

// Documents of workers, and of other programs.
func TestOrphanedFindsAnalysesThatAreNotHeldAndWereNotUpdatedForATTL(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		now := time.Now()
		old, soon, ahead := now.Add(-ttl(b)-2*time.Second), now.Add(time.Hour), now.Add(25*time.Hour)
		fresh := now.Add(time.Minute) // a slow machine may need longer than a TTL until the query
		stale := func(status any, more map[string]any) map[string]any {
			fields := map[string]any{"status": status, "updatedAt": timeValue(old)}
			for name, v := range more {
				fields[name] = v
			}
			return fields
		}
		updated := func(v any) map[string]any { return stale(analysislock.Queued, map[string]any{"updatedAt": v}) }
		locked := func(expires any) map[string]any {
			return stale(analysislock.Processing, map[string]any{"lockOwner": "js/1", "lockToken": 3, "lockExpiresAt": expires})
		}
		// A crash leaves such a lock, with any status.
		crashed := func(status any, expires any) map[string]any {
			return stale(status, map[string]any{"lockOwner": "js/1", "lockToken": 3, "lockHeartbeatAt": timeValue(old), "lockExpiresAt": expires})
		}
		late, waits := now.Add(-ttl(b)-time.Second), now.Add(time.Minute-ttl(b)) // by one TTL, or soon
		next := func(status, at any) map[string]any { return stale(status, map[string]any{"nextAttemptAt": at}) }
		foreign := func(at any) map[string]any { return map[string]any{"status": "ANALYZING", "nextAttemptAt": at} }
		cases := map[string]struct {
			fields map[string]any
			want   bool
		}{
			"queued, waits":                                {next(analysislock.Queued, timeValue(waits)), false},
			"queued, waits until the year 9999":            {next(analysislock.Queued, "9999-01-01T00:00:00Z"), true},
			"queued, its next attempt cannot be read":      {next(analysislock.Queued, "soon"), true},
			"another status, waits":                        {foreign(timeValue(waits)), false},
			"another status, late":                         {foreign(timeValue(late)), true},
			"another status, late, held":                   {map[string]any{"status": "ANALYZING", "nextAttemptAt": timeValue(late), "lockOwner": "js/1", "lockExpiresAt": soon}, false},
			"another status, late, expired":                {map[string]any{"status": "ANALYZING", "nextAttemptAt": timeValue(late), "lockOwner": "js/1", "lockExpiresAt": old}, true},
			"another status, late, a lock's time was left": {map[string]any{"status": "ANALYZING", "nextAttemptAt": timeValue(late), "lockExpiresAt": old}, true},
			"another status, late, a token that is a map":  {map[string]any{"status": "ANALYZING", "nextAttemptAt": timeValue(late), "lockToken": map[string]any{}}, false},
			"another status, waits, expired":               {map[string]any{"status": "ANALYZING", "nextAttemptAt": timeValue(waits), "lockOwner": "js/1", "lockExpiresAt": old}, false},
			"ready, late":                                  {next(analysislock.Ready, timeValue(late)), false},
			"another status, expired":                      {crashed("ANALYZING", timeValue(old)), true},
			"another status, until the year 9999":          {crashed("ANALYZING", "9999-01-01T00:00:00Z"), true},
			"processing, until the year 9999":              {crashed(analysislock.Processing, "9999-01-01T00:00:00Z"), true},
			"another status, held":                         {crashed("ANALYZING", timeValue(soon)), false},
			"queued":                                       {stale(analysislock.Queued, nil), true},
			"processing, expired":                          {locked(timeValue(old)), true},
			"queued, expired":                              {stale(analysislock.Queued, map[string]any{"lockOwner": "js/1", "lockExpiresAt": old}), true},
			"updated at a Timestamp":                       {updated(old), true},
			"updated at a string without decimals":         {updated(old.Add(-time.Second).UTC().Format(time.RFC3339)), true},
			"processing, held":                             {locked(timeValue(soon)), false},
			"processing, unreadable expiry, just written":  {locked(true), false},
			"ready":                                           {stale(analysislock.Ready, nil), false},
			"failed, as a lock was left":                      {stale(analysislock.Failed, map[string]any{"lockOwner": "js/1", "lockExpiresAt": old}), false},
			"another status":                                  {stale("ARCHIVED", nil), false},
			"updated 23 hours ahead":                          {updated(now.Add(23 * time.Hour)), false},
			"updated 25 hours ahead":                          {updated(timeValue(ahead)), true},
			"updated 25 hours ahead, a Timestamp":             {updated(ahead), true},
			"updated 25 hours ahead, milliseconds":            {updated(ahead.UnixMilli()), true},
			"updated 25 hours ahead, waits":                   {stale(analysislock.Queued, map[string]any{"updatedAt": ahead, "nextAttemptAt": timeValue(waits)}), false},
			"updated 25 hours ahead, crashed":                 {stale(analysislock.Processing, map[string]any{"updatedAt": timeValue(ahead), "lockOwner": "js/1", "lockToken": 3, "lockExpiresAt": old}), true},
			"updated at microseconds, which are unreadable":   {updated(old.UnixMicro()), false},
			"queued, held until microseconds":                 {stale(analysislock.Queued, map[string]any{"lockOwner": "js/1", "lockExpiresAt": soon.UnixMicro()}), false},
			"another status, until the year 9999, waits":      {foreign("9999-01-01T00:00:00Z"), true},
			"another status, waits 25 hours, a Timestamp":     {foreign(ahead), true},
			"another status, waits 23 hours":                  {foreign(timeValue(now.Add(23 * time.Hour))), false},
			"another status, waits for microseconds":          {foreign(waits.UnixMicro()), true},
			"ready, waits until the year 9999":                {next(analysislock.Ready, "9999-01-01T00:00:00Z"), false},
			"processing, unreadable expiry, an old heartbeat": {stale(analysislock.Processing, map[string]any{"lockOwner": "js/1", "lockHeartbeatAt": timeValue(old), "lockExpiresAt": true}), true},
			// Firestore holds these ids; no delivery could name them.
			"a\x01b": {stale(analysislock.Queued, nil), false}, "a\uFFFDb": {stale(analysislock.Queued, nil), false},
			"no status":                            {map[string]any{"updatedAt": timeValue(old)}, false},
			"no update":                            {map[string]any{"status": analysislock.Queued}, false},
			"null as the update":                   {updated(nil), false},
			"a number as the update":               {updated(old.UnixMilli()), true},
			"updated just now":                     {updated(timeValue(fresh)), false},
			"updated just now, 12 hours behind":    {updated(fresh.In(time.FixedZone("", -12*3600)).Format(time.RFC3339)), false},
			"a token that is a string":             {stale(analysislock.Queued, map[string]any{"lockToken": "secret"}), false},
			"a ready one's token that is a string": {stale(analysislock.Ready, map[string]any{"lockToken": "secret"}), false},
		}
		if b.Google() { // in real time it does not stay so
			delete(cases, "processing, unreadable expiry, just written")
		}
		var want []string
		for id, c := range cases {
			b.Put(t, id, c.fields)
			if c.want {
				want = append(want, id)
			}
		}
		got, _ := orphaned(t, open(t, b), 1000)
		slices.Sort(want)
		slices.Sort(got)
		same(t, want, got)
	})
}

func TestTheOldestAreCalledFirstAndNoMoreThanTheLimit(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		now := time.Now()
		for id, hours := range map[string]int{"b": 3, "c": 2, "a": 4, "d": 1} {
			b.Put(t, id, map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(now.Add(time.Duration(-hours) * time.Hour))})
		}
		if got, more := orphaned(t, a, 3); strings.Join(got, " ") != "a b c" || !more {
			t.Errorf("of strings, 3 at most: %q, more %t; want a b c, and more", got, more)
		}
		b.Put(t, "t", map[string]any{"status": analysislock.Processing, "updatedAt": now.Add(-150 * time.Minute)})
		if got, more := orphaned(t, a, 1000); strings.Join(got, " ") != "t a b c d" || more {
			t.Errorf("with a Timestamp, which Firestore sorts first: %q, more %t; want t a b c d, and no more", got, more)
		}
	})
}

func TestAnalysesThatWaitHideNoOrphan(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		now, waiting := time.Now(), 100
		if !b.Google() { // more than a page, with its boundary among the strings
			waiting = orphanPage + 100
		}
		for i := range waiting {
			b.Put(t, fmt.Sprint(i), map[string]any{
				"status": analysislock.Queued, "nextAttemptAt": timeValue(now.Add(time.Hour)),
				"updatedAt": storedForms(now.Add(-2 * time.Hour))[i%2], // strings, and Timestamps, which Firestore sorts first
			})
		}
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(now.Add(-time.Hour))})
		if got, more := orphaned(t, open(t, b), orphanPage); strings.Join(got, " ") != "x" || more {
			t.Errorf("orphaned: %q, more %t; want x alone", got, more)
		}
	})
}

// Two calls of recovery may read the same analysis. Another program may change it between
// the reading and the mark.
func TestAMarkIsMadeOnceAndOnlyOfAnOrphan(t *testing.T) {
	for name, tc := range map[string]struct {
		others func(now time.Time) map[string]any // what other programs write
		marked bool
	}{
		"unchanged":             {nil, true},
		"another field changed": {func(time.Time) map[string]any { return map[string]any{"theirs": 1} }, true},
		"its holder has renewed the lock": {func(now time.Time) map[string]any {
			return map[string]any{"lockExpiresAt": timeValue(now.Add(time.Hour))}
		}, false},
		"acquired, and released without a trace but its token": {func(now time.Time) map[string]any {
			return map[string]any{"lockToken": 7, "updatedAt": timeValue(now)}
		}, false},
		"released by another program": {func(now time.Time) map[string]any {
			return map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(now)}
		}, false},
		"booked again by an operator": {func(now time.Time) map[string]any {
			return map[string]any{"bookedTask": "theirs", "updatedAt": timeValue(now)}
		}, false},
		"parked": {func(now time.Time) map[string]any {
			return map[string]any{"parkedAt": timeValue(now), "parkedFor": "k 1", "updatedAt": timeValue(now)}
		}, false},
		"finished":               {func(time.Time) map[string]any { return map[string]any{"status": analysislock.Ready} }, false},
		"deleted":                {nil, false},
		"marked by another call": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
				a, err := Open(t.Context(), b.Project, optionsFor(b, Options{
					Policy:      lease.Policy{TTL: ttl(b), MaxAttempts: 10},
					Concurrency: &Concurrency{Fields: []string{"tenant"}, Limit: func(string) int { return 1 }},
				}), b.Client(t)...)
				fatal(t, err)
				old := timeValue(time.Now().Add(-time.Hour))
				b.Put(t, "x", map[string]any{"status": analysislock.Processing, "updatedAt": old, "lockOwner": "them", "lockToken": 6, "lockExpiresAt": old})
				due, _, err := a.Orphaned(t.Context(), 10)
				if err != nil || len(due) != 1 {
					t.Fatalf("orphaned: %+v, %v", due, err)
				}
				switch {
				case tc.others != nil:
					b.Merge(t, "x", tc.others(time.Now()))
				case name == "deleted":
					b.Delete(t, "x")
				case name == "marked by another call":
					_, err := a.MarkDue(t.Context(), due[0], timeString)
					fatal(t, err)
				}
				time.Sleep(2 * time.Millisecond) // so that two marks differ
				var next time.Time
				task, err := a.MarkDue(t.Context(), due[0], func(at time.Time) string { next = at; return "t" + timeString(at) })
				if marked := err == nil; marked != tc.marked || !marked && !errors.Is(err, lease.ErrConflict) {
					t.Fatalf("%v, %v; want marked %t, or else ErrConflict", next, err, tc.marked)
				}
				got := b.Fields(t, "x")
				if tc.marked && (got["nextAttemptAt"] != timeValue(next) || time.Since(next).Abs() > 10*time.Minute || got["updatedAt"] == old || got["bookedTask"] != task || got["lockToken"] != int64(6) || got["status"] != analysislock.Processing) {
					t.Errorf("document %v, want it marked with %v", got, next)
				}
				if ids, _ := orphaned(t, a, 10); len(ids) > 0 {
					t.Errorf("%q is found again", ids)
				}
			})
		})
	}
}

func TestAMalformedAnalysisIsNotRecoveredAndIsNamedInTheLog(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		old := timeValue(time.Now().Add(-time.Hour))
		for i := range maxWarnings + 1 {
			b.Put(t, fmt.Sprint("bad", i), map[string]any{"status": analysislock.Queued, "updatedAt": old, "lockToken": "secret", "input": "secret"})
		}
		b.Put(t, "good", map[string]any{"status": analysislock.Queued, "updatedAt": old})
		var text bytes.Buffer
		a, err := Open(t.Context(), b.Project, optionsFor(b, Options{Log: slog.New(slog.NewTextHandler(&text, nil))}), b.Client(t)...)
		fatal(t, err)
		if got, _ := orphaned(t, a, 100); strings.Join(got, " ") != "good" {
			t.Errorf("orphaned: %q, want good", got)
		}
		line := text.String()
		for _, want := range []string{"level=WARN", "analysis_id=bad", "lockToken is a string"} {
			if !strings.Contains(line, want) {
				t.Errorf("log %q lacks %s", line, want)
			}
		}
		if strings.Contains(line, "secret") || strings.Count(line, "\n") != maxWarnings {
			t.Errorf("log %q, want a line for each of the first ten, without the value", line)
		}
	})
}

// The query that may read many waiting analyses has its own time limit, and is the last. It continues where
// it stopped, so that they hide nobody for ever.
func TestAQueryThatTakesTooLongHidesNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		took := 6 * time.Second
		slow := grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string, s grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			if strings.HasSuffix(m, "RunQuery") {
				time.Sleep(took)
			}
			return s(ctx, d, cc, m, o...)
		})
		a, began := open(t, b, slow), time.Now()
		ago := func(d time.Duration) any { return timeValue(began.Add(-d)) }
		for n := range 25 { // more than a page before the ordinary one, and after it
			b.Put(t, fmt.Sprint("waits", n), map[string]any{"status": "QUEUED", "updatedAt": ago(time.Duration(7+n%2*2) * time.Minute), "nextAttemptAt": ago(-time.Hour)})
		}
		b.Put(t, "crashed", map[string]any{"status": "PROCESSING", "lockOwner": "w", "lockToken": 1, "lockExpiresAt": ago(time.Minute), "updatedAt": ago(6 * time.Minute)})
		b.Put(t, "purged", map[string]any{"status": "QUEUED", "updatedAt": ago(8 * time.Minute), "nextAttemptAt": ago(7 * time.Minute)})
		due, more, err := a.Orphaned(t.Context(), 10)
		if len(due) != 2 || !more || err != nil {
			t.Errorf("%+v, more %v, %v; want both, more, and no error", due, more, err)
		}
		b.Delete(t, "crashed")
		b.Delete(t, "purged")
		b.Put(t, "end", map[string]any{"status": "QUEUED", "updatedAt": ago(6 * time.Minute)})
		if due, _, err = open(t, b, slow).Orphaned(t.Context(), 10); len(due) != 1 || due[0].Doc.ID != "end" || err != nil {
			t.Errorf("a new process: %+v, %v; want the one at the end", due, err)
		}
		b.Delete(t, "end")
		b.Put(t, "malformed", map[string]any{"status": "QUEUED", "updatedAt": ago(9 * time.Minute), "lockToken": "7"})
		for range 2 { // it returns to its beginning
			b.Put(t, "ordinary", map[string]any{"status": "QUEUED", "updatedAt": ago(8 * time.Minute)})
			due = nil
			for calls := 0; calls < 4 && len(due) == 0; calls++ {
				due, more, err = a.Orphaned(t.Context(), 10)
			}
			if len(due) != 1 || due[0].Doc.ID != "ordinary" || !more || err != nil {
				t.Errorf("%+v, more %v, %v; want the one between them", due, more, err)
			}
			b.Delete(t, "ordinary")
		}
		took = 11 * time.Second
		if _, more, err = a.Orphaned(t.Context(), 10); !more || !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("more %v, %v; want ErrUnavailable, as nothing was read", more, err)
		}
	})
}

func TestAWorkersClockDoesNotDecideWhatIsOrphaned(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"slow": time.Hour, "fast": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				theirs := func() time.Time { return time.Now().Add(ahead) }
				server := firestore.NewServer(firestore.Options{Now: theirs})
				t.Cleanup(server.Close)
				b := &emulatortest.Backend{Project: emulatortest.Project(), Server: server, Calls: &emulatortest.Calls{}}
				for id, age := range map[string]time.Duration{"old": lease.DefaultTTL + time.Second, "fresh": lease.DefaultTTL - time.Second} {
					b.Put(t, id, map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(theirs().Add(-age))})
				}
				b.Put(t, "held", map[string]any{
					"status": analysislock.Processing, "updatedAt": timeValue(theirs().Add(-time.Hour)),
					"lockOwner": "w/1", "lockExpiresAt": timeValue(theirs().Add(time.Second)),
				})
				b.Put(t, "expired", map[string]any{
					"status": analysislock.Processing, "updatedAt": timeValue(theirs().Add(-time.Minute - lease.DefaultTTL)),
					"lockOwner": "w/1", "lockExpiresAt": timeValue(theirs().Add(-time.Second)),
				})
				a := open(t, b)
				if got, _ := orphaned(t, a, 10); strings.Join(got, " ") != "expired old" {
					t.Errorf("orphaned: %q, want expired and old", got)
				}
				rooms, _ := OpenRooms(t.Context(), b.Project, Options{Collection: "analyses"}, b.Client(t)...)
				if got, err := rooms.Lapsed(t.Context(), 10); len(got) != 1 || got[0].Room != "expired" {
					t.Errorf("lapsed: %v, %v; want expired", got, err)
				}
				running, _, _, _, err := a.Active(t.Context(), 10)
				if len(running) != 1 || running[0].ID != "held" || err != nil {
					t.Errorf("running: %+v, %v; want held", running, err)
				}
				due, _, _ := a.Orphaned(t.Context(), 1)
				if next, err := a.MarkDue(t.Context(), due[0], timeString); err != nil || next != timeString(theirs()) {
					t.Errorf("marked for %v, %v; want %v", next, err, theirs())
				}
			})
		})
	}
}

// Without the composite index, Firestore's error contains a link that creates it. No emulator
// does this.
func TestTheErrorOfAMissingIndexContainsItsLink(t *testing.T) {
	const words = "The query requires an index. You can create it here: https://console.firebase.google.com/v1/r/project/p/firestore/indexes?create_composite=Ck"
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a, l := openFaulty(t, b)
		l.inject(map[string][]fault{"RunQuery": {func(context.Context, func() error) error {
			return status.Error(codes.FailedPrecondition, words)
		}}})
		b.Put(t, "old", map[string]any{"status": "QUEUED", "updatedAt": timeValue(time.Now().Add(-time.Hour))})
		due, more, err := a.Orphaned(t.Context(), 10) // the first query alone fails
		if !errors.Is(err, lease.ErrRefused) || errors.Is(err, lease.ErrUnavailable) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want ErrRefused with Firestore's words", err)
		}
		if len(due) != 1 || !more {
			t.Errorf("%+v, more %v; want the one that another query finds, and more", due, more)
		}
	})
}

func timeString(t time.Time) string { return iso8601.Format(t) }
