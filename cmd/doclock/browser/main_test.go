package browser

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if _, err := chromium(); err == nil {
		return m.Run()
	}
	if v := os.Getenv("REQUIRE_CHROMIUM"); v != "" && v != "0" {
		fmt.Fprintln(os.Stderr, "REQUIRE_CHROMIUM is set, but no Chromium is in the PATH")
		return 1
	}
	fmt.Println("Skipped: the tests of the page and of its lock in Chromium, which is not in the PATH.")
	// The words that make go test say [no tests to run] behind this package's
	// ok. Without them it hides the output of packages that pass.
	fmt.Println("testing: warning: no tests to run")
	return 0
}

// chromium is the path of the browser.
func chromium() (path string, err error) {
	if v := os.Getenv("TASKGUARD_NO_CHROMIUM"); v != "" && v != "0" {
		return "", exec.ErrNotFound
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err = exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", err
}
