// Package alerts has no code. Its tests evaluate the queries of the alerts in deploy/monitoring with Prometheus' own
// engine, over simulated days at ten, 1,000 and 100,000 analyses a day. Each alert fires in its situation, and not in
// the others.
//
// It is a separate module, so that the product does not depend on Prometheus:
//
//	go -C deploy/alerts test ./...
//
// Cloud Monitoring's PromQL is Prometheus 2.44 with few differences. Its metrics are late by up to four minutes, which
// the simulation leaves out.
package alerts
