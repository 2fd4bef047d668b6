package doclockservice

import (
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"taskguard/internal/testing/must"

	tracecollector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A request's log line is of the caller's trace. Its span, which a collector gets, has only a link to that,
// whatever sampling the caller requests. There are no metrics.
func TestTelemetry(t *testing.T) {
	const trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	var received tracecollector.ExportTraceServiceRequest
	var paths []string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		body, err := io.ReadAll(r.Body)
		if err := errors.Join(err, proto.Unmarshal(body, &received)); err != nil {
			t.Error(err)
		}
	}))
	defer collector.Close()
	i := start(t, embedded(t), "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL)
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, i.url+"/internal/sweep", http.NoBody))(t)
	r.Header.Set("traceparent", "00-"+trace+"-"+caller+"-00")
	resp, err := http.DefaultClient.Do(r)
	must.OK(t, err)
	must.OK(t, resp.Body.Close())
	i.stop()
	must.OK(t, i.wait(t))
	if !slices.Equal(paths, []string{"/v1/traces"}) || len(received.ResourceSpans) != 1 {
		t.Fatalf("requests %v, want one of traces", paths)
	}

	span := received.ResourceSpans[0].ScopeSpans[0].Spans[0]
	if hex.EncodeToString(span.TraceId) == trace || len(span.ParentSpanId) > 0 {
		t.Errorf("%v is of the caller's trace", span)
	}
	links := ""
	for _, link := range span.Links {
		links += hex.EncodeToString(link.TraceId) + "/" + hex.EncodeToString(link.SpanId)
	}
	if span.Name != "request" || links != trace+"/"+caller {
		t.Errorf("the links of %s are %s", span.Name, links)
	}
	if who := received.ResourceSpans[0].Resource.String(); !strings.Contains(who, `"taskguard-doclock"`) {
		t.Errorf("resource = %s", who)
	}
	want := `"logging.googleapis.com/trace":"` + trace + `","logging.googleapis.com/spanId":"` + caller + `"`
	if text := i.log.String(); strings.Count(text, want) != 1 {
		t.Errorf("log: %s\nwant one line with %s", text, want)
	}
}
