package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"maps"
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

	"cloud.google.com/go/firestore/apiv1/firestorepb"
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

// billed counts the reads that Firestore bills for what it sends on a stream: one for each
// document, or for a thousand that are counted, and at least one. Then it calls ended.
type billed struct {
	grpc.ClientStream
	reads *atomic.Int64
	n     int64
	ended func(method string)
	name  string
}

func (s *billed) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if errors.Is(err, io.EOF) {
		s.reads.Add(max(s.n, 1))
		s.ended(s.name)
	}
	if err != nil {
		return err
	}
	switch r := m.(type) {
	case *firestorepb.RunQueryResponse:
		if r.GetDocument() != nil {
			s.n++
		}
	case *firestorepb.BatchGetDocumentsResponse:
		s.n++
	case *firestorepb.RunAggregationQueryResponse:
		for _, v := range r.GetResult().GetAggregateFields() {
			s.n += (v.GetIntegerValue() + 999) / 1000
		}
	}
	return nil
}

// openBilled opens b's analyses, counts the reads, and calls ended when a stream has ended.
func openBilled(t *testing.T, b *emulatortest.Backend, ended func(method string)) (*Client, *atomic.Int64) {
	t.Helper()
	reads := new(atomic.Int64)
	return clientOf(t, b, grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return &billed{ClientStream: s, reads: reads, ended: ended, name: method}, err
		})), reads
}

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
func TestAnOpenConsoleReadsFewDocumentsAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		cl, reads := openBilled(t, b, func(string) {})
		var spent int64
		at := func(ahead time.Duration) string { return iso8601.Format(time.Now().Add(ahead)) }
		running := func(i int) {
			b.Put(t, fmt.Sprint("running", i), map[string]any{"status": "PROCESSING", "lockOwner": "w", "lockToken": 1, "lockExpiresAt": at(time.Hour), "updatedAt": at(0), "createdAt": at(-time.Hour)})
		}
		for i := range 1000 {
			switch {
			case i < 10:
				running(i)
			case i < 30:
				b.Put(t, fmt.Sprint("waiting", i), map[string]any{"status": "QUEUED", "nextAttemptAt": at(time.Hour), "updatedAt": at(-time.Hour), "createdAt": at(-time.Hour)})
			case i >= 960:
				b.Put(t, fmt.Sprint("failed", i), map[string]any{"status": "FAILED", "error": map[string]any{"code": fmt.Sprint("code", i%3), "message": "m"}, "updatedAt": at(-time.Hour), "createdAt": at(-2 * time.Hour)})
			default:
				b.Put(t, fmt.Sprint("ready", i), map[string]any{"status": "READY", "updatedAt": at(-time.Duration(i) * time.Minute), "createdAt": at(-48 * time.Hour)})
			}
		}
		server := console.NewServer(t.Context(), overview{cl, reads, &spent}, console.Options{})
		show := func(path string) (text string) {
			w := httptest.NewRecorder()
			server.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, http.NoBody))
			text = w.Body.String()
			if n := strings.Count(text, "<tr role=\"row\" id=\"row-"); w.Code != http.StatusOK || n < 40 || n > 80 {
				t.Fatalf("%s: %d, %d rows", path, w.Code, n)
			}
			return text
		}
		first := show("/")
		_, next, _ := strings.Cut(first, `id="next" href="`)
		next, _, _ = strings.Cut(next, `"`)
		if second := show(html.UnescapeString(next)); !strings.Contains(first, `"ready30"`) || strings.Contains(second, `"ready30"`) {
			t.Errorf("the next page is %s", second)
		}
		var minutes, figures []int64
		for range 2 {
			before := reads.Load()
			for poll := range 15 { // every 4 s
				show("/")
				for i := range 10 {
					if (i*2+poll)%5 == 0 {
						running(i)
					}
				}
				time.Sleep(4 * time.Second)
			}
			minutes, figures = append(minutes, reads.Load()-before), append(figures, spent)
			spent = 0
		}
		for i := range 3000 {
			b.Put(t, fmt.Sprint("stuck", i), map[string]any{"status": "QUEUED", "updatedAt": at(-time.Hour), "createdAt": at(0)})
		}
		got, err := overview{cl, reads, &spent}.Backlog(t.Context(), 0)
		if err != nil || spent != 20 || spent > got.Reads() {
			t.Errorf("%+v, %v: 3,000 more in %d reads, want 20 and at most %d", got, err, spent, got.Reads())
		}
		t.Logf("an open page reads %v documents in its first two minutes, %v of them for the backlog", minutes, figures)
		if minutes[1] > 900 || slices.Max(figures) > 100 {
			t.Errorf("an open page reads %d documents a minute, %v for the backlog; want at most 900 and 100", minutes[1], figures)
		}
	})
}

// The first requeue is interrupted in the middle, and the second before its first change.
func TestARequeueOfAllThatIsInterruptedIsCompletedByTheNext(t *testing.T) {
	b := emulatortest.Embedded(t)
	ended := func(string) {}
	cl, _ := openBilled(t, b, func(method string) { ended(method) })
	for i := range 28 {
		at := time.Now().Add(-time.Hour - time.Duration(i)*time.Second)
		b.Put(t, fmt.Sprint("x", i), map[string]any{"status": []string{"READY", "FAILED"}[min(i/4, 1)], "updatedAt": []any{iso8601.Format(at), at}[i%2]})
	}
	all := func(now time.Time) repo.Filter { return repo.Filter{Since: now.Add(-24 * time.Hour)} }
	before, changed := time.Now(), int64(0)
	for i, at := range []string{"/BatchGetDocuments", "/RunQuery", "/none"} {
		ctx, cancel := context.WithCancel(t.Context())
		ended = func(method string) {
			if strings.HasSuffix(method, at) {
				cancel()
			}
		}
		got, err := consoleOperator{cl, slog.New(slog.DiscardHandler)}.ChangeAll(ctx, console.Requeue, console.Which{Filter: all}, "me", before, 28, false)
		if cancel(); err != nil || i == 0 && got.Changed == 24 || i == 2 && (got.Skipped != 4 || got.Matched != got.Changed+4) {
			t.Fatalf("%+v, %v", got, err)
		}
		changed += got.Changed
	}
	if changed != 24 {
		t.Errorf("%d are changed, want 24", changed)
	}
}

func TestTheConsoleChangesOnlyTheStateThatItHasShown(t *testing.T) {
	b := emulatortest.Embedded(t)
	o := consoleOperator{clientOf(t, b), slog.New(slog.DiscardHandler)}
	b.Put(t, "x", map[string]any{
		"status": "QUEUED", "lockToken": 2, "openEffects": 1, "effects": map[string]any{"charge": map[string]any{"state": "started", "token": 1}},
	})
	before := b.Fields(t, "x")
	shown := &analysislock.Seen{Status: "QUEUED", Grant: lease.Grant{Token: 1}}
	for _, verb := range []console.Verb{console.Unlock, console.Requeue, console.RequeueFresh, console.Cancel, console.Resolve} {
		booked, err := o.Change(t.Context(), console.Change{Verb: verb, ID: "x", Who: "me", Seen: shown, Act: "charge"})
		if !errors.Is(err, lease.ErrConflict) || !reflect.DeepEqual(b.Fields(t, "x"), before) {
			t.Errorf("%s: %q, %v, want a conflict, and nothing written: %v", verb, booked, err, b.Fields(t, "x"))
		}
	}
}

func TestResolveIsRefusedIfTheAnalysisHasChangedSinceItWasRead(t *testing.T) {
	b := emulatortest.Embedded(t)
	doc := func(token int) map[string]any {
		return map[string]any{
			"status": "FAILED", "lockToken": token, "openEffects": 1, "effects": map[string]any{"charge": map[string]any{"state": "started", "token": 1}},
		}
	}
	b.Put(t, "x", doc(1))
	read := sync.OnceFunc(func() { b.Put(t, "x", doc(2)) })
	cl, _ := openBilled(t, b, func(string) { read() })
	var out strings.Builder
	c := &cli.Call{Name: "resolve", Streams: cli.Streams{Out: &out, Err: &out}}
	err := cl.resolve(t.Context(), c, console.Change{Verb: console.Resolve, ID: "x", Act: "charge"}, 0)
	fields := b.Fields(t, "x")
	if !errors.Is(err, lease.ErrConflict) || fields["lockToken"] != int64(2) || fields["openEffects"] != int64(1) || fields["status"] != "FAILED" {
		t.Errorf("%v, want a conflict and nothing written: %v", err, fields)
	}
}

func TestTheConsoleChangesAllThatAFilterSelects(t *testing.T) {
	ago := func(hours float64) func(time.Time) time.Time {
		return func(now time.Time) time.Time { return now.Add(-time.Duration(hours * float64(time.Hour))) }
	}
	none := func(time.Time) (zero time.Time) { return zero }
	for _, tc := range []struct {
		what          console.Verb
		filter        repo.Filter
		since, before func(now time.Time) time.Time
		want          console.Bulk
		change        string // the ids that are changed
	}{
		{console.Cancel, repo.Filter{Status: "QUEUED"}, none, ago(-1), console.Bulk{Matched: 3, Changed: 3}, "q1 q2 q3"},
		{console.Cancel, repo.Filter{Status: "PROCESSING"}, none, none, console.Bulk{Matched: 2, Changed: 1, Skipped: 1}, "left"},
		{console.Cancel, repo.Filter{Code: "c"}, none, none, console.Bulk{Matched: 4, Changed: 2, Skipped: 2}, "q1 q2"},
		{console.Cancel, repo.Filter{}, none, ago(2.5), console.Bulk{Matched: 2, Changed: 2}, "q1 q3"},
		{console.Requeue, repo.Filter{Status: "FAILED", Code: "c", Cause: true}, none, none, console.Bulk{Matched: 2, Changed: 2}, "failed out"},
		{console.Requeue, repo.Filter{Status: "FAILED", Code: analysislock.AttemptsExhausted, Cause: true}, none, none, console.Bulk{}, ""},
		{console.Requeue, repo.Filter{Status: "QUEUED"}, none, none, console.Bulk{Matched: 3, Changed: 3}, "q1 q2 q3"},
		{console.Requeue, repo.Filter{}, ago(1.1), none, console.Bulk{Matched: 4, Changed: 2, Skipped: 2}, "failed out"},
		{console.Requeue, repo.Filter{Status: "READY"}, none, none, console.Bulk{Matched: 1, Changed: 1}, "ready"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			cl := clientOf(t, b)
			put := func(id, status string, hours float64, more map[string]any) {
				fields := map[string]any{"status": status, "attempts": 1, "lockToken": 1, "updatedAt": iso8601.Format(ago(hours)(time.Now()))}
				maps.Copy(fields, more)
				b.Put(t, id, fields)
			}
			code := map[string]any{"code": "c"}
			put("q1", "QUEUED", 3, map[string]any{"lastError": code})
			put("q2", "QUEUED", 2, map[string]any{"lastError": code})
			put("q3", "QUEUED", 4, nil)
			put("held", "PROCESSING", 1, map[string]any{"lockOwner": "w", "lockExpiresAt": iso8601.Format(time.Now().Add(time.Hour))})
			put("left", "PROCESSING", 2, nil)
			put("failed", "FAILED", 1, map[string]any{"error": code})
			put("out", "FAILED", 1, map[string]any{"error": map[string]any{"code": analysislock.AttemptsExhausted}, "lastError": code})
			put("ready", "READY", 1, nil)
			filter := func(now time.Time) repo.Filter {
				f := tc.filter
				f.Since, f.Before = tc.since(now), tc.before(now)
				return f
			}

			log := &emulatortest.Log{}
			o := consoleOperator{cl, slog.New(slog.NewTextHandler(log, nil))}
			match := func(a *analysislock.Analysis) bool { return a.ID == "q2" || a.ID == "left" || a.ID == "failed" }
			all := console.Which{Filter: func(time.Time) repo.Filter { return repo.Filter{} }, Match: match}
			some, err := o.ChangeAll(t.Context(), console.Requeue, all, "w", time.Time{}, 2, true)
			if err != nil || some.Matched != 3 || some.Changed != 2 {
				t.Errorf("%+v, %v; want two of the three that match", some, err)
			}
			dry, err := o.ChangeAll(t.Context(), tc.what, console.Which{Filter: filter}, "operator-1", time.Time{}, 10, true)
			if err != nil || time.Since(dry.Before) > time.Minute {
				t.Fatalf("%+v: before %s, %v", tc.filter, dry.Before, err)
			}
			time.Sleep(10 * time.Minute) // the times are those of the dry run
			for _, id := range []string{"later", "later2"} {
				put(id, cmp.Or(tc.filter.Status, "QUEUED"), 0, map[string]any{"error": code})
			}
			got, err := o.ChangeAll(t.Context(), tc.what, console.Which{Filter: filter}, "operator-1", dry.Before, 10, false)
			tc.want.Before = dry.Before
			if err != nil || got != tc.want || dry != tc.want {
				t.Errorf("%s %+v: %+v, dry %+v, %v; want %+v", tc.what, tc.filter, got, dry, err, tc.want)
			}
			text, total := log.String(), fmt.Sprintf("msg=%q command=%s", "all that a filter selects changed by an operator", tc.what)
			if n := strings.Count(text, `msg="changed by an operator"`); n != int(tc.want.Changed) || strings.Count(text, total) != 1 || strings.Count(text, "by=operator-1") != n+1 {
				t.Errorf("%s %+v: %s", tc.what, tc.filter, text)
			}

			var changed []string
			later, err := cl.Find(t.Context(), repo.Filter{Since: dry.Before.Add(time.Millisecond)}, "", 10)
			for i := range later {
				if !strings.HasPrefix(later[i].ID, "later") {
					changed = append(changed, later[i].ID)
				}
			}
			if slices.Sort(changed); err != nil || strings.Join(changed, " ") != tc.change {
				t.Errorf("%s %+v: changed are %s, want %s; %v", tc.what, tc.filter, changed, tc.change, err)
			}
		})
	}
}

// A stop comes while a change of one kind is committed, which takes 3 s.
func TestAStopWaitsForTheChangesOfEveryKind(t *testing.T) {
	kinds := []console.Kind{{Name: "a"}, {Name: "b", Root: "/kind/b"}}
	for _, kind := range kinds {
		synctest.Test(t, func(t *testing.T) {
			b, l := emulatortest.Embedded(t), bufconn.Listen(1<<16)
			b.Put(t, "x", map[string]any{"status": "QUEUED", "updatedAt": iso8601.Format(time.Now())})
			ctx, stop := context.WithCancel(t.Context())
			slow := grpc.WithChainUnaryInterceptor(
				func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					stop()
					time.Sleep(3 * time.Second)
					return invoke(ctx, method, req, reply, cc, opts...)
				})
			s := ConsoleServer{clients: []*Client{clientOf(t, b, slow), clientOf(t, b, slow)}, write: true, options: console.Options{
				Kinds: kinds, Log: slog.New(slog.DiscardHandler),
			}}
			served := make(chan error, 1)
			go func() { served <- s.Serve(ctx, l) }()

			time.Sleep(time.Minute) // the form is newer than what it selects
			form := strings.NewReader(fmt.Sprint("seen=", time.Now().UnixMilli(), "-1"))
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+kind.Root+"/all/cancel?state=QUEUED", form)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			transport := http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) }}
			resp, err := transport.RoundTrip(r)
			if err := <-served; err != nil {
				t.Error(err)
			}
			if err != nil {
				t.Fatalf("kind %s: the change is cut off: %v", kind.Name, err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK || b.Fields(t, "x")["status"] != "FAILED" {
				t.Errorf("kind %s: %s, %v", kind.Name, resp.Status, b.Fields(t, "x"))
			}
		})
	}
}
