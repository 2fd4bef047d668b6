package browser

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Parse()
	switch _, err := find(); {
	case err != nil && set("REQUIRE_CHROMIUM"):
		fmt.Fprintln(os.Stderr, "REQUIRE_CHROMIUM is set, but no Chromium is in the PATH")
		os.Exit(1)
	case err != nil:
		fmt.Println("Skipped: the tests of the web pages in Chromium, which is not in the PATH.")
		// go test then shows [no tests to run] behind this package's ok. Otherwise it
		// hides the output of packages that pass.
		fmt.Println("testing: warning: no tests to run")
		os.Exit(0)
	}

	// The tests mostly wait: for a page to poll, or for a lock to end. With 8 at once, two cores were at
	// times too slow for a lock.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := shared.end(); err != nil {
		fmt.Fprintln(os.Stderr, "ending Chromium:", err)
		code = 1
	}
	os.Exit(code)
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
