// Command worker is the Cloud Run service: it answers Cloud Tasks' deliveries
// of analyses. It is configured by environment alone; see docs/reference.md.
package main

import (
	"context"
	"fmt"
	"os"

	"taskguard/internal/workerservice"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "worker takes no arguments: it is configured by environment; see docs/reference.md")
		os.Exit(2)
	}
	code, err := workerservice.Main(context.Background(), os.LookupEnv, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
