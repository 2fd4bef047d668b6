package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// overview is a source that adds up what is billed for the backlog. A page reads nothing else meanwhile.
type overview struct {
	*Client
	reads *atomic.Int64
	spent *int64
}

func (o overview) Backlog(ctx context.Context, stuck int) (repo.Backlog, error) {
	before := o.reads.Load()
	b, err := o.Client.Backlog(ctx, stuck)
	*o.spent += o.reads.Load() - before
	return b, err
}

// Of 1,000 analyses ten run, each with a heartbeat a minute and progress every 20 s, twenty wait for their next
// attempt, and forty have failed just now, by three codes.
func TestConsole_Reads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		cl, reads := openBilled(t, b, func() {})
		var spent int64
		put := func(id string, i int, status string, updated, created time.Duration, name string, value any) {
			fields := doc{"status": status, "updatedAt": at(-updated), "createdAt": at(-created), name: value}
			b.Put(t, fmt.Sprint(id, i), fields)
		}
		running := func(i int) {
			put("running", i, "PROCESSING", 0, time.Hour, "lockOwner", "w")
			b.Merge(t, fmt.Sprint("running", i), doc{"lockToken": 1, "lockExpiresAt": at(time.Hour)})
		}
		for i := range 1000 {
			switch {
			case i < 10:
				running(i)
			case i < 30:
				put("waiting", i, "QUEUED", time.Hour, time.Hour, "nextAttemptAt", at(time.Hour))
			case i >= 960:
				put("failed", i, "FAILED", time.Hour, 2*time.Hour, "error", doc{"code": fmt.Sprint("code", i%3)})
			default:
				put("ready", i, "READY", time.Duration(i)*time.Minute, 48*time.Hour, "result", 1)
			}
		}
		server := console.NewServer(t.Context(), overview{cl, reads, &spent}, console.Options{})
		for minute := range 2 {
			before := reads.Load()
			spent = 0
			for poll := range 15 { // every 4 s
				w := httptest.NewRecorder()
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", http.NoBody)
				server.ServeHTTP(w, r)
				if n := strings.Count(w.Body.String(), `<tr role="row" id="row-`); n < 40 || n > 80 {
					t.Fatalf("%d, %d rows", w.Code, n)
				}
				for i := range 10 {
					if (i*2+poll)%5 == 0 {
						running(i)
					}
				}
				time.Sleep(4 * time.Second)
			}
			limit := []int64{5000, 900}[minute] // the first fills what is kept
			if n := reads.Load() - before; n > limit || spent > 100 {
				t.Errorf("minute %d: %d reads, %d for the backlog; want at most %d and 100", minute, n, spent, limit)
			}
		}
		for i := range 3000 {
			put("stuck", i, "QUEUED", time.Hour, 0, "input", 1)
		}
		spent = 0
		got, err := overview{cl, reads, &spent}.Backlog(t.Context(), 0)
		ok(t, err)
		if spent != 20 || spent > got.Reads() {
			t.Errorf("%+v: 3,000 more in %d reads, want 20 and at most %d", got, spent, got.Reads())
		}
	})
}

func TestConsole_Seen(t *testing.T) {
	charge := doc{"charge": doc{"state": "started", "token": 1}}
	t.Run("the console changes only the state that it has shown", func(t *testing.T) {
		b := emulatortest.Embedded(t)
		o := consoleOperator{clientOf(t, b), silent}
		b.Put(t, "x", doc{"status": "QUEUED", "lockToken": 2, "openEffects": 1, "effects": charge})
		before := b.Fields(t, "x")
		shown := &analysislock.Seen{Status: "QUEUED", Grant: lease.Grant{Token: 1}}
		for _, verb := range []console.Verb{
			console.Unlock, console.Requeue, console.RequeueFresh, console.Cancel, console.Resolve,
		} {
			_, err := o.Change(t.Context(), console.Change{Verb: verb, ID: "x", Who: "me", Seen: shown, Act: "charge"})
			if !errors.Is(err, lease.ErrConflict) || !reflect.DeepEqual(b.Fields(t, "x"), before) {
				t.Errorf("%s: %v, want a conflict, and nothing written: %v", verb, err, b.Fields(t, "x"))
			}
		}
	})
	t.Run("resolve is refused if the analysis has changed since it was read", func(t *testing.T) {
		b := emulatortest.Embedded(t)
		put := func(token int) {
			b.Put(t, "x", doc{"status": "FAILED", "lockToken": token, "openEffects": 1, "effects": charge})
		}
		put(1)
		read := sync.OnceFunc(func() { put(2) })
		cl, _ := openBilled(t, b, read)
		c, _ := call("resolve")
		err := cl.resolve(t.Context(), c, console.Change{Verb: console.Resolve, ID: "x", Act: "charge"}, 0)
		fields := b.Fields(t, "x")
		if written := fields["lockToken"] != int64(2) || fields["openEffects"] != int64(1); written {
			t.Errorf("%v is written", fields)
		}
		if !errors.Is(err, lease.ErrConflict) {
			t.Errorf("%v, want a conflict", err)
		}
	})
}

// before returns the time so many hours before another.
func before(hours float64) func(time.Time) time.Time {
	return func(now time.Time) time.Time { return now.Add(-time.Duration(hours * float64(time.Hour))) }
}

// putSeven writes seven analyses, each with the hours since its update.
func putSeven(t *testing.T, b *emulatortest.Backend) {
	t.Helper()
	for id, hours := range map[string]float64{
		"QUEUED q1": 3, "QUEUED q2": 2, "QUEUED q3": 4,
		"PROCESSING held": 1, "PROCESSING left": 2, "FAILED failed": 1, "READY ready": 1,
	} {
		status, id, _ := strings.Cut(id, " ")
		updated := iso8601.Format(before(hours)(time.Now()))
		b.Put(t, id, doc{"status": status, "attempts": 1, "lockToken": 1, "updatedAt": updated})
	}
	b.Merge(t, "held", doc{"lockOwner": "w", "lockExpiresAt": at(time.Hour)})
}

func TestConsole_ChangeAll(t *testing.T) {
	limit := func(of func(time.Time) time.Time, now time.Time) (none time.Time) {
		if of == nil {
			return none
		}
		return of(now)
	}
	for name, tc := range map[string]struct {
		verb          console.Verb
		filter        repo.Filter
		since, before func(time.Time) time.Time
		skipped       int64
		changed       string // ids
	}{
		"a limit that is ahead": {
			verb: console.Cancel, filter: repo.Filter{Status: "QUEUED"}, before: before(-1), changed: "q1 q2 q3",
		},
		"what is held": {
			verb: console.Cancel, filter: repo.Filter{Status: "PROCESSING"}, skipped: 1, changed: "left",
		},
		"an older time": {verb: console.Cancel, before: before(2.5), changed: "q1 q3"},
		"a newer time":  {verb: console.Requeue, since: before(1.1), skipped: 2, changed: "failed"},
		"READY by name": {verb: console.Requeue, filter: repo.Filter{Status: "READY"}, changed: "ready"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := emulatortest.Embedded(t)
				cl := clientOf(t, b)
				putSeven(t, b)
				log := &emulatortest.Log{}
				o := consoleOperator{cl, slog.New(slog.NewTextHandler(log, nil))}
				run := func(before time.Time, dryRun bool) console.Bulk {
					which := console.Which{Filter: func(now time.Time) repo.Filter {
						f := tc.filter
						f.Since, f.Before = limit(tc.since, now), limit(tc.before, now)
						return f
					}}
					got, err := o.ChangeAll(t.Context(), tc.verb, which, "operator-1", before, 10, dryRun)
					ok(t, err)
					return got
				}
				dry := run(time.Time{}, true)
				time.Sleep(10 * time.Minute) // the times are those of the dry run
				status := cmp.Or(tc.filter.Status, "QUEUED")
				b.Put(t, "later", doc{"status": status, "updatedAt": at(0), "error": doc{"code": "c"}})
				got := run(dry.Before, false)
				n := int64(len(strings.Fields(tc.changed)))
				want := console.Bulk{Before: dry.Before, Matched: n + tc.skipped, Changed: n, Skipped: tc.skipped}
				if got != want || dry != want {
					t.Errorf("%+v, dry %+v; want %+v", got, dry, want)
				}
				if now := time.Now().Add(-10 * time.Minute); now.Sub(dry.Before) > time.Minute {
					t.Errorf("the time is %s, want Firestore's, %s", dry.Before, now)
				}
				logged, by := strings.Count(log.String(), "analysis_id="), strings.Count(log.String(), "by=operator-1")
				if logged != int(n) || by != int(n)+1 { // and one for all
					t.Errorf("%s", log)
				}

				var changed []string
				found, err := cl.Find(t.Context(), repo.Filter{Since: dry.Before.Add(time.Millisecond)}, "", 10)
				ok(t, err)
				for i := range found {
					changed = append(changed, found[i].ID)
				}
				expected := append(strings.Fields(tc.changed), "later")
				if slices.Sort(changed); !slices.Equal(changed, slices.Sorted(slices.Values(expected))) {
					t.Errorf("changed are %s, want %s", changed, tc.changed)
				}
			})
		})
	}
	t.Run("an interrupted one begins no other change", func(t *testing.T) {
		b := emulatortest.Embedded(t)
		putSeven(t, b)
		ctx, interrupt := context.WithCancel(t.Context())
		streams := 0
		cl, _ := openBilled(t, b, func() {
			if streams++; streams == 2 { // the count, and the list
				interrupt()
			}
		})
		all := console.Which{Filter: func(time.Time) repo.Filter { return repo.Filter{} }}
		got, err := consoleOperator{cl, silent}.ChangeAll(ctx, console.Cancel, all, "w", time.Now(), 10, false)
		ok(t, err)
		if got.Matched != 7 || got.Changed != 0 {
			t.Errorf("%+v, want none of the seven changed", got)
		}
	})
	t.Run("what matches is counted, and changed up to a limit", func(t *testing.T) {
		b := emulatortest.Embedded(t)
		putSeven(t, b)
		which := console.Which{
			Filter: func(time.Time) repo.Filter { return repo.Filter{} },
			Match: func(a *analysislock.Analysis) bool {
				return slices.Contains([]string{"q2", "left", "failed"}, a.ID)
			},
		}
		o := consoleOperator{clientOf(t, b), silent}
		got, err := o.ChangeAll(t.Context(), console.Requeue, which, "w", time.Time{}, 2, true)
		ok(t, err)
		if got.Matched != 3 || got.Changed != 2 {
			t.Errorf("%+v, want two of the three that match", got)
		}
	})
}

// A stop comes while a change of one kind is committed, which takes 3 s.
func TestConsole_Stop(t *testing.T) {
	kinds := []console.Kind{{Name: "a"}, {Name: "b", Root: "/kind/b"}}
	for _, kind := range kinds {
		t.Run("kind "+kind.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, l := emulatortest.Embedded(t), bufconn.Listen(1<<16)
				b.Put(t, "x", doc{"status": "QUEUED", "updatedAt": at(0)})
				ctx, stop := context.WithCancel(t.Context())
				slow := grpc.WithChainUnaryInterceptor(func(
					ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
					opts ...grpc.CallOption,
				) error {
					stop()
					time.Sleep(3 * time.Second)
					return invoke(ctx, method, req, reply, cc, opts...)
				})
				s := ConsoleServer{
					clients: []*Client{clientOf(t, b, slow), clientOf(t, b, slow)}, write: true,
					options: console.Options{Kinds: kinds, Log: silent},
				}
				served := make(chan error, 1)
				go func() { served <- s.Serve(ctx, l) }()

				time.Sleep(time.Minute) // the form is newer than what it selects
				form := strings.NewReader(fmt.Sprint("seen=", time.Now().UnixMilli(), "-1"))
				target := "http://localhost" + kind.Root + "/all/cancel?state=QUEUED"
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, form)
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				r.Header.Set("Sec-Fetch-Site", "same-origin")
				dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) }
				resp, err := (&http.Transport{DisableKeepAlives: true, DialContext: dial}).RoundTrip(r)
				ok(t, <-served)
				ok(t, err) // or the change is cut off
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK || b.Fields(t, "x")["status"] != "FAILED" {
					t.Errorf("%s, %v", resp.Status, b.Fields(t, "x"))
				}
			})
		})
	}
}

func TestConsole_Address(t *testing.T) {
	c := &cli.Call{Flags: &pflag.FlagSet{}, Lookup: func(string) (string, bool) { return "9", true }}
	for _, limit := range []int{1, maxListed} {
		got, err := consoleAddress(c, ConsoleOptions{Limit: limit}, "127.0.0.1", 65535)
		if got != "127.0.0.1:65535" || err != nil {
			t.Errorf("%d: %s, %v", limit, got, err)
		}
	}
}
