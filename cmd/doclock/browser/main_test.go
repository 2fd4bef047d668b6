package browser

import (
	"os"
	"testing"

	"taskguard/cmd/chromiumtest"
)

func TestMain(m *testing.M) {
	os.Exit(chromiumtest.Main(m, "the tests of the page and of its lock"))
}
