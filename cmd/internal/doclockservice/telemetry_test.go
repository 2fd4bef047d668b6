package doclockservice

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	tracecollector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A request's line is of the caller's trace, but its span, which a collector gets,
// has only a link to that, whatever sampling the caller requests. There are no
// metrics.
func TestARequestsLineIsOfTheCallersTraceAndItsSpanOfItsOwn(t *testing.T) {
	const trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	var received tracecollector.ExportTraceServiceRequest
	var paths []string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		body, err := io.ReadAll(r.Body)
		if err != nil || proto.Unmarshal(body, &received) != nil {
			t.Errorf("OTLP: %v", err)
		}
	}))
	defer collector.Close()
	i := start(t, embedded(t), "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL)
	r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, i.url+"/internal/sweep", http.NoBody))(t)
	r.Header.Set("traceparent", "00-"+trace+"-"+caller+"-00")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	i.stop()
	check(t, i.wait(t))
	if len(paths) != 1 || paths[0] != "/v1/traces" || len(received.ResourceSpans) != 1 {
		t.Fatalf("requests %v, want one of traces", paths)
	}
	span := received.ResourceSpans[0].ScopeSpans[0].Spans[0]
	if span.Name != "request" || hex.EncodeToString(span.TraceId) == trace || len(span.ParentSpanId) > 0 {
		t.Errorf("span = %v", span)
	}
	if len(span.Links) != 1 || hex.EncodeToString(span.Links[0].TraceId) != trace || hex.EncodeToString(span.Links[0].SpanId) != caller {
		t.Errorf("links = %v", span.Links)
	}
	if who := received.ResourceSpans[0].Resource.String(); !strings.Contains(who, `"taskguard-doclock"`) {
		t.Errorf("resource = %s", who)
	}
	want := `"logging.googleapis.com/trace":"` + trace + `","logging.googleapis.com/spanId":"` + caller + `"`
	if text := i.log.String(); strings.Count(text, want) != 1 {
		t.Errorf("log: %s\nwant one line with %s", text, want)
	}
}
