package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/build"
	"taskguard/internal/env"
	"taskguard/internal/telemetry"
)

// silent is a listener without clients.
type silent struct{ closed chan struct{} }

func (l silent) Accept() (net.Conn, error) { <-l.closed; return nil, errors.New("listener failed") }
func (l silent) Close() error              { return nil }
func (l silent) Addr() net.Addr            { return &net.TCPAddr{Port: 1} }

func TestServeStopsInOrderAndWaitsForAll(t *testing.T) {
	for name, failed := range map[string]bool{"stopped": false, "listener failed": true} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			done := make(chan string, 10)
			l := silent{make(chan struct{})}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			s := Service{
				Limits: DefaultLimits(), Log: telemetry.NewLogger(&log, "json", 0),
				Drain: func(ctx context.Context) { done <- fmt.Sprint("drain ", ctx.Err()) },
				Flush: func(ctx context.Context) {
					deadline, _ := ctx.Deadline()
					done <- "flush for " + time.Until(deadline).String()
					close(l.closed)
				},
				Background: []func(context.Context){func(ctx context.Context) {
					<-ctx.Done()
					time.Sleep(time.Second)
					done <- "background"
				}},
			}
			if failed {
				s.Flush = func(context.Context) { done <- "flush for 2s" }
				close(l.closed)
			} else {
				time.AfterFunc(time.Minute, stop)
			}
			err := s.Serve(ctx, l, slog.String("setting", "x"))
			close(done)
			var events []string
			for event := range done {
				events = append(events, event)
			}
			if want := []string{"drain <nil>", "flush for 2s", "background"}; !slices.Equal(events, want) || (err != nil) != failed {
				t.Errorf("%s: %q, %v, want %q", name, events, err, want)
			}
			if text := log.String(); !strings.Contains(text, `"message":"serving","address":":1","memory_limit":`) || !strings.Contains(text, `,"version":"`+build.Release+`","commit":"`+build.Commit()+`","setting":"x"`) || !strings.Contains(text, `"stopping"`) {
				t.Errorf("%s: log %s", name, text)
			}
		})
	}
}

// The metadata server's answer is kept for the process, so what fails comes first.
func TestMainFindsTheProjectAndReturnsTheExitCode(t *testing.T) {
	id := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/computeMetadata/v1/project/project-id" || id == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, id)
	}))
	defer s.Close()
	t.Setenv("GCE_METADATA_HOST", s.Listener.Addr().String())
	t.Setenv("GOMEMLIMIT", "off")
	taken := s.Listener.Addr().(*net.TCPAddr).Port
	for _, tc := range []struct {
		process Process
		id      string
		err     error // of serve
		code    int
		want    string
	}{
		{Process{Firestore: env.Firestore{Emulator: "h:1"}}, "p", nil, 2, "GOOGLE_CLOUD_PROJECT: must be set with FIRESTORE_EMULATOR_HOST"},
		{Process{}, "", nil, 2, "GOOGLE_CLOUD_PROJECT: not set, and there is no metadata server: "},
		{Process{}, "my-project", errors.New("ended"), 1, "ended"},
		{Process{Port: taken}, "my-project", nil, 1, "PORT: "},
		{Process{LogFormat: "text"}, "my-project", nil, 0, ""},
	} {
		id = tc.id
		served := 0
		var out strings.Builder
		code, err := tc.process.Main(t.Context(), &out, func(_ context.Context, l net.Listener, log *slog.Logger) error {
			log.InfoContext(t.Context(), "x")
			if served++; tc.process.Project != tc.id || tc.process.Telemetry.Project != tc.id || strings.Contains(out.String(), "level=INFO msg=x") != (tc.process.LogFormat == "text") {
				t.Errorf("process %+v logs %s", tc.process, &out)
			}
			return errors.Join(tc.err, l.Close())
		})
		if code != tc.code || (err == nil) != (tc.want == "") || err != nil && !strings.HasPrefix(err.Error(), tc.want) || (served == 1) != (tc.err != nil || code == 0) {
			t.Errorf("%d, %v after %d, want %d, %s", code, err, served, tc.code, tc.want)
		}
	}
}
