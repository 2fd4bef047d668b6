package browser

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"taskguard/cmd/chromiumtest"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

// folder is for what all tests share.
var folder string

func run(m *testing.M) int {
	var err error
	if folder, err = os.MkdirTemp("", "taskguard"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder) //nolint:errcheck // it is a temporary one
	return chromiumtest.Main(m, "the tests of the operators' console")
}

// taskguard is the path of the tool, built once.
var taskguard = sync.OnceValues(func() (path string, err error) {
	path = filepath.Join(folder, "taskguard")
	if out, err := exec.Command("go", "build", "-o", path, "taskguard/cmd/taskguard").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})
