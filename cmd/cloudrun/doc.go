// Package cloudrun holds what the services share as processes on Cloud Run: a strict
// environment, Cloud Logging's lines, an HTTP server with limits, telemetry, and a stop
// within the 10 s that Cloud Run allows.
package cloudrun
