package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/iso8601"
	"taskguard/repo"
	"taskguard/worker/console"
)

// Google's client opens a stream that is refused again and again, and says nothing
// of it; all else is answered.
func TestTheConsoleSaysThatFirestoreAnswersAndItsStreamAloneDoesNot(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Unauthenticated, codes.ResourceExhausted} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			b := emulatortest.Embedded(t)
			var refused atomic.Bool
			a, err := repo.Open(t.Context(), b.Project, repo.Options{}, b.Client(t, grpc.WithChainStreamInterceptor(
				func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
					s, err := open(ctx, d, cc, method, opts...)
					if strings.HasSuffix(method, "/Listen") {
						s = fragile{s, &refused, code}
					}
					return s, err
				}))...)
			if err != nil {
				t.Fatal(err)
			}
			work, end := context.WithCancel(t.Context())
			pace := console.Pace{Probe: 100 * time.Millisecond, Patience: 2 * time.Second, Retry: 10 * time.Millisecond}
			page := console.NewServer(work, watched{&client{analyses: a}}, console.Options{Pace: pace})
			var running sync.WaitGroup
			running.Go(func() { page.Run(work) })
			defer running.Wait()
			defer end()
			shown := func() string {
				w := httptest.NewRecorder()
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
				r.Host = "localhost"
				page.ServeHTTP(w, r)
				return w.Body.String()
			}
			renew := func(left time.Duration) {
				now := time.Now()
				b.Put(t, "a", map[string]any{"status": "PROCESSING", "lockOwner": "w/1", "lockToken": 1, "updatedAt": iso8601.Format(now), "lockExpiresAt": iso8601.Format(now.Add(left))})
			}
			says := func(want string) {
				t.Helper()
				eventually(t, want, func() bool {
					text := shown()
					if strings.Contains(text, `data-id="a"`) && !strings.Contains(text, `data-lock="held"`) {
						t.Fatalf("its lock was renewed, and the page says\n%s", text)
					}
					return strings.Contains(text, want)
				})
			}
			renew(8 * time.Second)
			says(`data-lock="held"`)
			says(`; reload for newer`)
			refused.Store(true)
			renew(time.Hour)
			says("Firestore answers, but has told of no change since ")
			time.Sleep(8 * time.Second) // longer than the lock lasts that is shown
			says("Firestore answers, but has told of no change since ")
			refused.Store(false)
			says(`; reload for newer`)
		})
	}
}

// fragile is a stream that breaks while it is refused.
type fragile struct {
	grpc.ClientStream
	refused *atomic.Bool
	code    codes.Code
}

func (f fragile) RecvMsg(m any) error {
	received := make(chan error, 1)
	go func() { received <- f.ClientStream.RecvMsg(m) }()
	for {
		select {
		case err := <-received:
			if f.refused.Load() {
				return status.Error(f.code, "refused")
			}
			return err
		case <-time.After(10 * time.Millisecond):
			if f.refused.Load() {
				return status.Error(f.code, "refused")
			}
		}
	}
}
