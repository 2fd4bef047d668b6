// Command worker is the Cloud Run service: it answers Cloud Tasks' deliveries
// of analyses. It is configured by environment alone; see docs/reference.md.
package main

import (
	"taskguard/internal/cloudrun"
	"taskguard/internal/workerservice"
)

func main() { cloudrun.Exit("worker", workerservice.Main) }
