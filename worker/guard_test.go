package worker

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"taskguard/internal/taskauth"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/repo"
)

// Each option reaches the documents, the runs, their places and the metrics.
func TestGuard_Options(t *testing.T) {
	b, q, reader := emulatortest.Embedded(t), StartQueue(t), sdkmetric.NewManualReader()
	o := Options{
		Project: b.Project, Collection: "mine", Auth: CheckedByProxy(), Log: slog.New(slog.DiscardHandler),
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), FirestoreOptions: b.Client(t),
		Lock: lease.Policy{TTL: 100 * time.Second, Heartbeat: 9 * time.Second, MaxAttempts: 3}, Keep: 900 * time.Hour,
		RunTimeout: 2 * time.Minute, StallTimeout: 30 * time.Second, CheckpointInterval: 5 * time.Second,
		RetryMin: time.Minute, RetryMax: 90 * time.Second, MaxRunTime: time.Hour, MaxRuns: 1,
	}
	q.Use(&o)
	g := must.Get(Open(t.Context(), o))(t)
	defer g.Shutdown(t.Context()) //nolint:errcheck // nothing runs
	work := g.MustRegister(Kind{Run: succeed})

	documents := repo.Options{Collection: "mine", Policy: o.Lock, MaxRunTime: time.Hour, Keep: o.Keep, Log: o.Log}
	if got := g.storeOptions(work.Kind); !reflect.DeepEqual(got, documents) {
		t.Errorf("documents %+v, want %+v", got, documents)
	}
	r := work.runner
	got := []time.Duration{r.RunTimeout, r.StallTimeout, r.CheckpointInterval, r.RetryMin, r.RetryMax}
	want := []time.Duration{2 * time.Minute, 30 * time.Second, 5 * time.Second, time.Minute, 90 * time.Second}
	if !slices.Equal(got, want) {
		t.Errorf("runs %v, want %v", got, want)
	}
	if r.Queue == nil || r.Log != o.Log {
		t.Errorf("the queue %v, the log %v", r.Queue, r.Log)
	}
	if place, ok := g.places.Enter(); !ok || !place.Only() {
		t.Error("there is not one place")
	}
	own := g.MustRegister(Kind{Name: "job", Collection: "jobs", RunTimeout: time.Minute, Run: succeed})
	if own.runner.RunTimeout != time.Minute {
		t.Errorf("a run of a kind with its own RunTimeout takes up to %v", own.runner.RunTimeout)
	}
	_, _ = own.Handler(), own.PubSub()
	if n := len(g.handled); n != 1 {
		t.Errorf("recovery runs %d times for a kind with two handlers", n)
	}
	own.runner.Telemetry.Record(t.Context(), 0, 7)
	if got := Counts(t, reader, "taskguard.deliveries"); got != "job :7" {
		t.Errorf("deliveries %q", got)
	}
}

func TestOptions_Authenticator(t *testing.T) {
	for _, tc := range []struct {
		o    Options
		want any
	}{
		{Options{Auth: OIDC("https://a.example", "a@b.c")}, &taskauth.Verifier{}},
		{Options{}, always{errNoAuth}},
		{Options{Emulator: "h:1"}, always{}},
		{Options{Emulator: "h:1", Auth: callers{}}, callers{}},
		{Options{NoHTTP: true, Auth: callers{}}, always{errNoHTTP}},
	} {
		got, err := tc.o.authenticator()
		if want := fmt.Sprintf("%T", tc.want); err != nil || fmt.Sprintf("%T", got) != want {
			t.Errorf("%T, %v; want %s", got, err, want)
		}
		if want, ok := tc.want.(always); ok && got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
}
