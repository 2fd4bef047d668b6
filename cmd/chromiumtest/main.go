package chromiumtest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Main runs the tests where there is a Chromium, and answers the exit code. what
// names, in a sentence, the tests that are not run where there is none.
func Main(m *testing.M, what string) int {
	if _, err := find(); err == nil {
		return m.Run()
	}
	if set("REQUIRE_CHROMIUM") {
		fmt.Fprintln(os.Stderr, "REQUIRE_CHROMIUM is set, but no Chromium is in the PATH")
		return 1
	}
	fmt.Println("Skipped: " + what + " in Chromium, which is not in the PATH.")
	// go test then shows [no tests to run] behind this package's ok. Otherwise it
	// hides the output of packages that pass.
	fmt.Println("testing: warning: no tests to run")
	return 0
}

func set(name string) bool {
	v := os.Getenv(name)
	return v != "" && v != "0"
}

// find is the path of the browser.
func find() (path string, err error) {
	if set("TASKGUARD_NO_CHROMIUM") {
		return "", exec.ErrNotFound
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err = exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", err
}
