// Package telemetry are the worker's OpenTelemetry instruments and spans: what is
// measured, under which name. It knows OpenTelemetry's API alone; who exports is
// the process's affair, and where nobody does nothing is made.
//
// Names and attributes are public: they only grow. No attribute holds a token of
// authentication, an input, a result or an analyzer's words.
package telemetry
