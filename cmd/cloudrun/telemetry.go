package cloudrun

import (
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// protocol is the only one of OTLP's that is spoken here.
const protocol = "http/protobuf"

// Telemetry is where OpenTelemetry's traces and metrics go, by OTLP over HTTP. The
// zero value is nowhere: nothing is made and nothing sent.
type Telemetry struct {
	Service string // service.name, unless OTEL_SERVICE_NAME says another
	Version string // service.version; empty: none
	Traces  string // URL; empty: none are sent
	Metrics string // URL; empty: none are sent
	Project string // gcp.project_id, for Google's own endpoint; empty: unknown

	secrets []string          // words of headers, which no line may show
	timeout time.Duration     // of one try to send to Google's own endpoint
	under   http.RoundTripper // of tests, which reach Google's own endpoint at home
}

// Telemetry reads OpenTelemetry's standard variables. What has a wrong form here
// would else be ignored by the SDK, or be quoted on standard error. The SDK reads
// others too, which are not checked. No metrics are sent by a service that has none.
func (e *Environment) Telemetry(service string, metrics bool) Telemetry {
	t := Telemetry{Service: service, Version: e.Text("K_REVISION", ""), Project: e.Text("GOOGLE_CLOUD_PROJECT", ""), timeout: e.tryTimeout()}
	off := strings.ToLower(e.Text("OTEL_SDK_DISABLED", "false"))
	if off != "false" && off != "true" {
		e.Problem("OTEL_SDK_DISABLED", "%q is not one of false, true", off)
	}
	base := e.collector("OTEL_EXPORTER_OTLP_ENDPOINT")
	e.OneOf("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
	t.secrets = e.headers("OTEL_EXPORTER_OTLP_HEADERS")
	e.sdks(metrics)
	signal := func(name, path string) string {
		e.OneOf("OTEL_EXPORTER_OTLP_"+name+"_PROTOCOL", protocol)
		t.secrets = append(t.secrets, e.headers("OTEL_EXPORTER_OTLP_"+name+"_HEADERS")...)
		own := e.collector("OTEL_EXPORTER_OTLP_" + name + "_ENDPOINT")
		switch {
		case e.OneOf("OTEL_"+name+"_EXPORTER", "otlp", "none") == "none":
			return ""
		case own != nil:
			return own.String()
		case base == nil:
			return ""
		}
		return base.JoinPath(path).String()
	}
	t.Traces = signal("TRACES", "v1/traces")
	if metrics {
		t.Metrics = signal("METRICS", "v1/metrics")
	}
	if off == "true" {
		t.Traces, t.Metrics = "", ""
	}
	return t
}

// sdks checks what only the SDK reads.
func (e *Environment) sdks(metrics bool) {
	e.Text("OTEL_SERVICE_NAME", "")
	e.pairs("OTEL_RESOURCE_ATTRIBUTES", "")
	check := func(name, wants string, ok func(v string) bool) {
		if v := strings.ToLower(strings.TrimSpace(e.Text(name, ""))); v != "" && !ok(v) {
			e.Problem(name, "is not %s", wants)
		}
	}
	upTo := func(most int) func(string) bool { // the SDK panics at less, or at much more
		return func(v string) bool {
			n, err := strconv.Atoi(v)
			return err == nil && 0 < n && n <= most
		}
	}
	milliseconds, spans := upTo(math.MaxInt32), upTo(1_000_000)
	samplers := []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}
	check("OTEL_TRACES_SAMPLER", "one of "+strings.Join(samplers, ", "), func(v string) bool { return slices.Contains(samplers, v) })
	check("OTEL_TRACES_SAMPLER_ARG", "a number from 0 to 1", func(v string) bool {
		n, err := strconv.ParseFloat(v, 64)
		return err == nil && n >= 0 && n <= 1
	})
	check("OTEL_BSP_SCHEDULE_DELAY", "a number of milliseconds", milliseconds)
	check("OTEL_BSP_MAX_QUEUE_SIZE", "a number from 1 to 1000000", spans)
	check("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "a number from 1 to 1000000", spans)
	check("OTEL_EXPORTER_OTLP_TIMEOUT", "a number of milliseconds", milliseconds)
	if metrics {
		check("OTEL_METRIC_EXPORT_INTERVAL", "a number of milliseconds", milliseconds)
	}
}

// collector is a URL that may be shown in a log, or nil.
func (e *Environment) collector(name string) *url.URL {
	v := e.Text(name, "")
	if v == "" {
		return nil
	}
	u, err := url.Parse(v)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "": // it may quote a password
		e.Problem(name, "is not an http or https URL")
		return nil
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		e.Problem(name, "has more than scheme, host and path; a key belongs into OTEL_EXPORTER_OTLP_HEADERS")
		return nil
	}
	return u
}

// headers are the words of the values of name=value,…, as they are written and as
// they are sent.
func (e *Environment) headers(name string) (words []string) {
	return e.pairs(name, `"(),/:;<=>?@[\]{}`)
}

// pairs reads name=value,… whose names have nothing of foreign.
func (e *Environment) pairs(name, foreign string) (words []string) {
	v := e.Text(name, "")
	if v == "" {
		return nil
	}
	for pair := range strings.SplitSeq(v, ",") {
		key, value, found := strings.Cut(pair, "=")
		sent, err := url.PathUnescape(value)
		key = strings.TrimSpace(key)
		if !found || err != nil || key == "" || strings.ContainsFunc(key, func(r rune) bool {
			return r <= ' ' || r > '~' || strings.ContainsRune(foreign, r)
		}) {
			e.Problem(name, "is not name=value, with several separated by commas and values percent-encoded")
			return nil
		}
		words = append(append(words, strings.Fields(value)...), strings.Fields(sent)...)
	}
	return words
}

// Attr says in the log where the telemetry goes.
func (t Telemetry) Attr() slog.Attr {
	where := t.Traces
	if where == "" {
		where = t.Metrics
	}
	if u, err := url.Parse(where); err == nil && u.Host != "" {
		where = u.Scheme + "://" + u.Host
	}
	return slog.String("otlp", where)
}
