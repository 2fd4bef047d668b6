// Package telemetry makes the worker's OpenTelemetry metrics and spans. It uses only
// OpenTelemetry's API; the process chooses the exporters, and without one nothing is
// recorded.
//
// Names and attributes are public: new ones may be added; none is changed or removed. No
// attribute contains a token of authentication, an input, a result or a text of an
// analyzer.
package telemetry
