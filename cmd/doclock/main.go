// Command doclock is the document lock as a Cloud Run service. It is configured by
// environment only; see docs/reference.md.
package main

import (
	"taskguard/internal/cloudrun"
	"taskguard/internal/doclockservice"
)

func main() { cloudrun.Exit("doclock", doclockservice.Main) }
