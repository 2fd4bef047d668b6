package worker_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

// submissionsTrace and recoverysTrace are the traces of the callers.
const (
	submissionsTrace = "0af7651916cd43dd8448eb211c80319c"
	recoverysTrace   = "1af7651916cd43dd8448eb211c80319c"
)

func TestOneTraceLeadsFromTheSubmissionToEachRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		spans := sdktrace.NewTracerProvider() // its spans have ids, and go nowhere
		g := open(t, b, func(o *worker.Options) {
			q.Use(o)
			o.TracerProvider = spans
		})
		var mu sync.Mutex
		traces := map[string][]string{}
		work := g.MustRegister(worker.Kind{Run: func(ctx context.Context, job worker.Job) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			id := job.AnalysisID
			if traces[id] = append(traces[id], trace.SpanContextFromContext(ctx).TraceID().String()); len(traces[id]) == 1 {
				return nil, errors.New("flaky")
			}
			return "done", nil
		}})
		h, err := g.Routes(work)
		if err != nil {
			t.Fatal(err)
		}
		q.Serve(h)

		tracer := spans.Tracer("application")
		id, err := trace.TraceIDFromHex(submissionsTrace)
		if err != nil {
			t.Fatal(err)
		}
		parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})
		ctx, span := tracer.Start(trace.ContextWithSpanContext(t.Context(), parent), "request")
		if _, err := work.Submit(ctx, "submitted", 1); err != nil {
			t.Fatal(err)
		}
		span.End()
		set(t, collection(t, b, "analyses").Doc("created"), map[string]any{"status": "QUEUED"})
		if err := work.Book(ctx, "created"); err != nil {
			t.Fatal(err)
		}
		set(t, collection(t, b, "analyses").Doc("orphan"), map[string]any{"status": "QUEUED", "updatedAt": "1999-12-31T00:00:00.000Z"})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/internal/tasks/recover", strings.NewReader(""))
		r.Header.Set("traceparent", "00-"+recoverysTrace+"-b7ad6b7169203331-01")
		h.ServeHTTP(httptest.NewRecorder(), r)
		time.Sleep(time.Hour)

		mu.Lock()
		defer mu.Unlock()
		for _, id := range []string{"submitted", "created"} {
			if want := []string{submissionsTrace, submissionsTrace}; !slices.Equal(traces[id], want) {
				t.Errorf("%s: the runs are in the traces %q, want %q", id, traces[id], want)
			}
		}
		// One call of recovery books thousands: their runs are not in its trace, but each in one of its own.
		if own := traces["orphan"]; len(own) != 2 || own[0] != own[1] || own[0] == recoverysTrace || own[0] == submissionsTrace {
			t.Errorf("orphan: the runs are in the traces %q, want twice one of its own", own)
		}
	})
}
