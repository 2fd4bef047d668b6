// Package cloudrun is what the services of this product have in common as
// processes on Cloud Run: an environment read strictly, Cloud Logging's lines, an
// HTTP server with limits, and a stop within the 10 s that Cloud Run leaves.
package cloudrun
