// Command doclock is the document lock as a Cloud Run service. It is configured by
// environment only; see docs/reference.md.
package main

import (
	"context"
	"fmt"
	"os"

	"taskguard/internal/doclockservice"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "doclock takes no arguments: it is configured by environment; see docs/reference.md")
		os.Exit(2)
	}
	code, err := doclockservice.Main(context.Background(), os.LookupEnv, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
