package service

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	metricscollector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracecollector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector receives OTLP over HTTP, as any other does.
type collector struct {
	url string

	mu       sync.Mutex
	resource *resourcepb.Resource
	spans    []*tracepb.Span
	metrics  map[string]*metricspb.Metric // as last received
	scopes   map[string]bool
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{metrics: map[string]*metricspb.Metric{}, scopes: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(_ http.ResponseWriter, r *http.Request) {
		var request tracecollector.ExportTraceServiceRequest
		if decode(t, r, &request) {
			c.takeTraces(&request)
		}
	})
	mux.HandleFunc("POST /v1/metrics", func(_ http.ResponseWriter, r *http.Request) {
		var request metricscollector.ExportMetricsServiceRequest
		if decode(t, r, &request) {
			c.takeMetrics(&request)
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

func decode(t *testing.T, r *http.Request, into proto.Message) bool {
	b, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(b, into)
	}
	if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
		t.Errorf("a body of %q: %v", r.Header.Get("Content-Type"), err)
	}
	return err == nil
}

func (c *collector) takeTraces(request *tracecollector.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.ResourceSpans {
		c.resource = of.Resource
		for _, scope := range of.ScopeSpans {
			c.scopes[scope.Scope.Name] = true
			c.spans = append(c.spans, scope.Spans...)
		}
	}
}

func (c *collector) takeMetrics(request *metricscollector.ExportMetricsServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.ResourceMetrics {
		c.resource = of.Resource
		for _, scope := range of.ScopeMetrics {
			c.scopes[scope.Scope.Name] = true
			for _, m := range scope.Metrics {
				c.metrics[m.Name] = m
			}
		}
	}
}

// attributes are those of a point, a span or a resource.
func attributes(all []*commonpb.KeyValue) map[string]any {
	m := map[string]any{}
	for _, kv := range all {
		switch v := kv.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			m[kv.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			m[kv.Key] = v.IntValue
		}
	}
	return m
}

// point is one of a metric's: its value, or a histogram's count and sum.
type point struct {
	attributes map[string]any
	n          int64
	sum        float64
}

func points(m *metricspb.Metric) (all []point) {
	switch data := m.GetData().(type) {
	case *metricspb.Metric_Sum:
		for _, p := range data.Sum.DataPoints {
			all = append(all, point{attributes(p.Attributes), p.GetAsInt(), 0})
		}
	case *metricspb.Metric_Gauge:
		for _, p := range data.Gauge.DataPoints {
			all = append(all, point{attributes(p.Attributes), p.GetAsInt(), 0})
		}
	case *metricspb.Metric_Histogram:
		for _, p := range data.Histogram.DataPoints {
			all = append(all, point{attributes(p.Attributes), int64(p.Count), p.GetSum()})
		}
	}
	return all
}

// of are the points of a metric by the values of one attribute; "" is none.
func (c *collector) of(metric, by string) map[any]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := map[any]int64{}
	for _, p := range points(c.metrics[metric]) {
		counts[p.attributes[by]] += p.n
	}
	return counts
}

// named are the spans of a name, in the order of their ends.
func (c *collector) named(name string) []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.spans), func(s *tracepb.Span) bool { return s.Name != name })
}

func (c *collector) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.metrics))
}
