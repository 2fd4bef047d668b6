// Command doclock is the document lock as a Cloud Run service. It is configured by
// environment only; see docs/reference.md.
package main

import (
	"taskguard/cmd/internal/doclockservice"
	"taskguard/cmd/internal/service"
)

func main() { service.Exit("doclock", doclockservice.Main) }
