package service

import (
	"cmp"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"taskguard/internal/env"
)

// Telemetry configures the export of traces and metrics, by OTLP over HTTP. The zero value exports
// nothing.
type Telemetry struct {
	Service string // service.name, unless OTEL_SERVICE_NAME sets another
	Version string // service.version; empty: none
	Traces  string // URL; empty: none are sent
	Metrics string // URL; empty: none are sent
	Project string // gcp.project_id, for Google's own endpoint; empty: unknown

	transport http.RoundTripper // to Google's own endpoint, for tests; nil: the default
}

// ReadTelemetry reads the variables that enable OpenTelemetry's exporters. The SDK reads its
// other variables itself. metrics reports whether the service has metrics.
func ReadTelemetry(e *env.Environment, service string, metrics bool) Telemetry {
	t := Telemetry{Service: service, Version: e.Text("K_REVISION", ""), Project: e.Text("GOOGLE_CLOUD_PROJECT", "")}
	base := collector(e, "OTEL_EXPORTER_OTLP_ENDPOINT")
	e.OneOf("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	disabled := strings.EqualFold(e.Text("OTEL_SDK_DISABLED", ""), "true")
	// The SDK panics on an impossible size, and logs the text of malformed headers.
	e.Integer("OTEL_BSP_MAX_QUEUE_SIZE", 2048, 1, 1_000_000)
	e.Integer("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, 1, 1_000_000)
	checkHeaders(e, "OTEL_EXPORTER_OTLP_HEADERS")

	signal := func(name, path string) string {
		checkHeaders(e, "OTEL_EXPORTER_OTLP_"+name+"_HEADERS")
		e.OneOf("OTEL_EXPORTER_OTLP_"+name+"_PROTOCOL", "http/protobuf")
		none := e.OneOf("OTEL_"+name+"_EXPORTER", "otlp", "none") == "none"
		own := collector(e, "OTEL_EXPORTER_OTLP_"+name+"_ENDPOINT")

		switch {
		case none || disabled || own == nil && base == nil:
			return ""
		case own != nil:
			return own.String()
		}
		return base.JoinPath(path).String()
	}

	t.Traces = signal("TRACES", "v1/traces")
	if metrics {
		t.Metrics = signal("METRICS", "v1/metrics")
	}
	return t
}

// collector reads the URL of a collector. It returns nil if the URL is unset, or refused because
// it cannot be logged.
func collector(e *env.Environment, name string) *url.URL {
	v := e.Text(name, "")
	if v == "" {
		return nil
	}
	u, err := url.Parse(v)
	plain := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
	if plain && u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		return u
	}

	// The message does not quote it: it may contain a password.
	e.Problem(name, "is not an http or https URL of scheme, host and path; "+
		"a key belongs into OTEL_EXPORTER_OTLP_HEADERS")
	return nil
}

// checkHeaders refuses headers that the SDK cannot parse.
func checkHeaders(e *env.Environment, name string) {
	for pair := range strings.SplitSeq(e.Text(name, ""), ",") {
		header, value, found := strings.Cut(pair, "=")
		_, err := url.PathUnescape(value)
		if pair != "" && (!found || err != nil || !validName.MatchString(strings.TrimSpace(header))) {
			e.Problem(name, "is not of the form name=value,…")
			return
		}
	}
}

// validName matches the name of an HTTP header.
var validName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// Attr returns the collector's URL, for the log.
func (t Telemetry) Attr() slog.Attr { return slog.String("otlp", cmp.Or(t.Traces, t.Metrics)) }
