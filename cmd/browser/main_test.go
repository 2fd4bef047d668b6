package browser

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run runs the tests if there is a Chromium, and returns the exit code.
func run(m *testing.M) int {
	if _, err := find(); err == nil {
		flag.Parse()
		// The tests mostly wait: for a page to poll, or for a lock to end.
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
		code := m.Run()
		if err := shared.process.end(); err != nil {
			fmt.Fprintln(os.Stderr, "ending Chromium:", err)
			return 1
		}
		return code
	}
	if set("REQUIRE_CHROMIUM") {
		fmt.Fprintln(os.Stderr, "REQUIRE_CHROMIUM is set, but no Chromium is in the PATH")
		return 1
	}
	fmt.Println("Skipped: the tests of the web pages in Chromium, which is not in the PATH.")
	// go test then shows [no tests to run] behind this package's ok. Otherwise it
	// hides the output of packages that pass.
	fmt.Println("testing: warning: no tests to run")
	return 0
}

func set(name string) bool {
	v := os.Getenv(name)
	return v != "" && v != "0"
}

// find returns the path of the browser.
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
