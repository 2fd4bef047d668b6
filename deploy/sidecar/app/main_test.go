package app

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if _, err := python(); err == nil {
		return m.Run()
	}
	if set("REQUIRE_PYTHON") {
		fmt.Fprintln(os.Stderr, "REQUIRE_PYTHON is set, but no python3 is in the PATH")
		return 1
	}
	fmt.Println("Skipped: the tests of the application in Python, which is not in the PATH.")
	// The words that make go test say [no tests to run] behind this package's
	// ok. Without them it hides the output of packages that pass.
	fmt.Println("testing: warning: no tests to run")
	return 0
}

func set(name string) bool {
	v := os.Getenv(name)
	return v != "" && v != "0"
}

// python is the path of the interpreter.
func python() (path string, err error) {
	if set("TASKGUARD_NO_PYTHON") {
		return "", exec.ErrNotFound
	}
	return exec.LookPath("python3")
}
