package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"

	"taskguard/internal/console"
	"taskguard/internal/emulatortest"
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
	a, err := repo.Open(t.Context(), b.Project, repo.Options{}, b.Client(t, grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return &billed{ClientStream: s, reads: reads, ended: ended, name: method}, err
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return &Client{analyses: a}, reads
}

// Of 5,000 analyses ten run, each with a heartbeat a minute and progress every 20 s, and
// twenty wait for their next attempt.
func TestAnOpenConsoleReadsFewDocumentsAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		cl, reads := openBilled(t, b, func(string) {})
		at := func(ahead time.Duration) string { return iso8601.Format(time.Now().Add(ahead)) }
		running := func(i int) {
			b.Put(t, fmt.Sprint("running", i), map[string]any{"status": "PROCESSING", "lockOwner": "w", "lockToken": 1, "lockExpiresAt": at(time.Hour), "updatedAt": at(0), "createdAt": at(-time.Hour)})
		}
		for i := range 5000 {
			switch {
			case i < 10:
				running(i)
			case i < 30:
				b.Put(t, fmt.Sprint("waiting", i), map[string]any{"status": "QUEUED", "nextAttemptAt": at(time.Hour), "updatedAt": at(-time.Hour), "createdAt": at(-time.Hour)})
			default:
				b.Put(t, fmt.Sprint("ready", i), map[string]any{"status": "READY", "updatedAt": at(-time.Duration(i) * time.Minute), "createdAt": at(-48 * time.Hour)})
			}
		}
		server := console.NewServer(t.Context(), consoleSource{cl}, console.Options{})
		var minutes []int64
		for range 2 {
			before := reads.Load()
			for poll := range 15 { // every 4 s
				w := httptest.NewRecorder()
				server.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", http.NoBody))
				if n := strings.Count(w.Body.String(), "<tr role=\"row\" id=\"row-"); w.Code != http.StatusOK || n < 60 || n > 80 {
					t.Fatalf("%d, %d rows", w.Code, n)
				}
				for i := range 10 {
					if (i*2+poll)%5 == 0 {
						running(i)
					}
				}
				time.Sleep(4 * time.Second)
			}
			minutes = append(minutes, reads.Load()-before)
		}
		t.Logf("an open page reads %v documents in its first two minutes", minutes)
		if minutes[1] > 400 {
			t.Errorf("an open page reads %d documents a minute, want at most 400", minutes[1])
		}
	})
}

func TestTheConsoleRequeuesOnlyTheFailuresThatWereConfirmed(t *testing.T) {
	b := emulatortest.Embedded(t)
	read := func() {}
	cl, _ := openBilled(t, b, func(method string) {
		if strings.HasSuffix(method, "/RunQuery") {
			read()
		}
	})
	before := time.Now().Add(-time.Minute)
	put := func(id, code string, updated time.Time) {
		b.Put(t, id, map[string]any{"status": "FAILED", "attempts": 3, "lockToken": 3, "updatedAt": iso8601.Format(updated), "error": map[string]any{"code": code, "message": "confidential"}, "lastError": map[string]any{"code": "c"}})
	}
	for i := range 5 {
		put(fmt.Sprint("x", i), "c", before.Add(-time.Hour))
	}
	put("other", "d", before.Add(-time.Hour))
	put("later", "c", before)
	log := &emulatortest.Log{}
	o := consoleOperator{cl, slog.New(slog.NewTextHandler(log, nil))}
	requeue := func(ctx context.Context, limit int, dryRun bool, want console.Bulk) {
		t.Helper()
		want.Before = before
		if got, err := o.RequeueFailed(ctx, "c", "operator-1", before, limit, dryRun); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	requeue(t.Context(), 10, true, console.Bulk{Matched: 5, Changed: 5})
	if log.String() != "" || b.Fields(t, "x1")["status"] != "FAILED" {
		t.Errorf("a dry run has changed x1 or the log: %s", log)
	}
	read = func() { b.Merge(t, "x4", map[string]any{"lockToken": 4}) } // after it was listed
	requeue(t.Context(), 2, false, console.Bulk{Matched: 5, Changed: 1, Skipped: 1})
	ctx, cancel := context.WithCancel(t.Context())
	read = cancel // before the first change
	requeue(ctx, 10, false, console.Bulk{Matched: 4})
	read = func() {}
	requeue(t.Context(), 10, false, console.Bulk{Matched: 4, Changed: 4})
	for id, want := range map[string]string{"x0": "QUEUED", "x4": "QUEUED", "other": "FAILED", "later": "FAILED"} {
		if got := b.Fields(t, id)["status"]; got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	if text := log.String(); strings.Count(text, `msg="changed by an operator"`) != 5 || strings.Count(text, `msg="failures requeued by an operator" command=requeue code=c by=operator-1 matched=`) != 3 || strings.Contains(text, "confidential") {
		t.Error(text)
	}
}
