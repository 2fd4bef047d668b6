package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

func TestMain(m *testing.M) {
	if provider := os.Getenv(providerVariable); provider != "" {
		fmt.Fprintln(os.Stderr, serveOrders(provider))
		os.Exit(1)
	}
	if setting := os.Getenv(crashVariable); setting != "" {
		if err := serveCrash(setting); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(emulatortest.Main(m))
}

// opened opens a Guard on b, which the test shuts down.
func opened(t *testing.T, b *emulatortest.Backend, adapt func(*worker.Options)) *worker.Guard {
	t.Helper()
	o := worker.Options{Project: b.Project, Auth: worker.CheckedByProxy(), Log: slog.New(slog.DiscardHandler), FirestoreOptions: b.Client(t)}
	if adapt != nil {
		adapt(&o)
	}
	g, err := worker.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// open opens a Guard on b until the end of the test.
func open(t *testing.T, b *emulatortest.Backend, adapt func(*worker.Options)) *worker.Guard {
	t.Helper()
	g := opened(t, b, adapt)
	t.Cleanup(func() {
		if err := g.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return g
}

// withGuard runs a test in virtual time, with a Guard on an embedded Firestore.
func withGuard(t *testing.T, run func(t *testing.T, b *emulatortest.Backend, g *worker.Guard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		run(t, b, open(t, b, nil))
	})
}

// openLogged opens a Guard on b, and returns its log of plain lines.
func openLogged(t *testing.T, b *emulatortest.Backend, adapt func(*worker.Options)) (*worker.Guard, *emulatortest.Log) {
	t.Helper()
	log := &emulatortest.Log{}
	return open(t, b, func(o *worker.Options) {
		o.Log = slog.New(slog.NewTextHandler(log, nil))
		if adapt != nil {
			adapt(o)
		}
	}), log
}

// clockAhead is how far the clock of ahead is ahead of the machine's.
const clockAhead = 100 * time.Hour

// ahead returns a Firestore with another clock than the machine's.
func ahead(t *testing.T) *emulatortest.Backend {
	t.Helper()
	b := emulatortest.Embedded(t)
	b.Server = firestore.NewServer(firestore.Options{Now: func() time.Time { return time.Now().Add(clockAhead) }})
	t.Cleanup(b.Server.Close)
	return b
}

// jobs is a kind with a vocabulary of its own.
func jobs(run func(ctx context.Context, job worker.Job) (any, error)) worker.Kind {
	return worker.Kind{
		Name: "job", Collection: "jobs", Path: "/tasks/job",
		Fields: worker.Fields{Status: "state", Queued: "PENDING", Processing: "RUNNING", Finished: "DONE", Failed: "ERROR", Input: "payload", Result: "output"},
		Run:    run,
	}
}

// checkPanic calls f, which must panic with want in its value.
func checkPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
			t.Errorf("panic %s, want %s", got, want)
		}
	}()
	f()
}

func post(t *testing.T, h http.Handler, path, body string) (code int, answer string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
	return rec.Code, rec.Body.String()
}
