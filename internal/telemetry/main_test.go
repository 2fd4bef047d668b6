package telemetry_test

import (
	"os"
	"testing"

	"taskguard/internal/testing/emulatortest"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	os.Exit(m.Run())
}
