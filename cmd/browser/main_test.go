package browser

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestMain(m *testing.M) {
	// The tests mostly wait: for a page to poll, or for a lock to end. With 8 at once, two cores were at
	// times too slow for a lock.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	code := examplestest.Main(m, "CHROMIUM")
	if err := shared.end(); err != nil {
		fmt.Fprintln(os.Stderr, "ending Chromium:", err)
		code = 1
	}
	os.Exit(code)
}
