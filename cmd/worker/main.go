// Command worker is the Cloud Run service: it answers Cloud Tasks' deliveries
// of analyses. It is configured by environment alone; see docs/reference.md.
package main

import (
	"taskguard/cmd/internal/service"
	"taskguard/cmd/internal/workerservice"
)

func main() { service.Exit("worker", workerservice.Main) }
