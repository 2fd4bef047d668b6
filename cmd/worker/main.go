// Command worker is the Cloud Run service: it answers Cloud Tasks' deliveries
// of analyses. It is configured by environment alone; see the README.
package main

import (
	"context"
	"fmt"
	"os"

	"taskguard/cmd/worker/service"
)

func main() {
	code, err := service.Main(context.Background(), os.LookupEnv, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
