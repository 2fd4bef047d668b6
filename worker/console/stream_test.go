package console_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/worker/console"
)

// served is a console on a socket, with little time for requests to arrive.
func served(t *testing.T, source console.Source, pace console.Pace) (url string, stop func()) {
	t.Helper()
	work, end := context.WithCancel(context.Background())
	s := console.NewServer(work, source, console.Options{Pace: pace})
	server := httptest.NewUnstartedServer(s)
	server.Config.ReadTimeout = 300 * time.Millisecond
	server.Start()
	var running sync.WaitGroup
	running.Go(func() { s.Run(work) })
	stop = sync.OnceFunc(func() {
		end()
		draining, done := context.WithTimeout(context.Background(), time.Minute)
		defer done()
		if left := s.Drain(draining); left != 0 {
			t.Errorf("%d streams are left", left)
		}
		server.Close()
		running.Wait()
	})
	t.Cleanup(stop)
	return server.URL, stop
}

// A server's limit on the time of a request must not end its answer.
func TestAStreamOutlivesTheTimeForRequestsAndEndsAtTheStop(t *testing.T) {
	url, stop := served(t, newShelf(of("a", "QUEUED")), quick)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines, beats := bufio.NewScanner(resp.Body), 0
	for beats < 12 && lines.Scan() { // 12 beats of 50 ms
		if strings.HasPrefix(lines.Text(), "data: ") {
			beats++
		}
	}
	if beats < 12 {
		t.Fatalf("the stream ended after %d messages: %v", beats, lines.Err())
	}
	stop()
	for lines.Scan() {
	}
	if err := lines.Err(); err != nil {
		t.Errorf("it ended with %v, want its proper end", err)
	}
}

// A page that takes nothing costs its stream, and no memory for what it missed.
func TestAPageThatTakesNothingIsDropped(t *testing.T) {
	source := newShelf()
	for i := range 150 {
		w := of(fmt.Sprintf("%03d %s", i, strings.Repeat("x", 1000)), "QUEUED")
		source.all[w.ID] = w
	}
	pace := quick
	pace.Write, pace.Linger = 100*time.Millisecond, time.Hour
	work, end := context.WithCancel(context.Background())
	s := console.NewServer(work, source, console.Options{Pace: pace})
	var running sync.WaitGroup
	running.Go(func() { s.Run(work) })
	defer func() { end(); running.Wait() }()
	server := httptest.NewServer(s)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{ReadBufferSize: 4 << 10}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stopped := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stopped:
				return
			case <-time.After(2 * time.Millisecond):
			}
			source.change(func() {
				for id, w := range source.all {
					w.Attempts = i
					source.all[id] = w
				}
			})
		}
	})
	defer func() { close(stopped); writing.Wait() }()
	end2, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	if left := s.Drain(end2); left != 0 { // it waits for the stream; nothing else ends it
		t.Errorf("%d streams are left of a page that takes nothing", left)
	}
	if errors.Is(end2.Err(), context.DeadlineExceeded) {
		t.Error("not within a minute")
	}
}
