package telemetry_test

import (
	"os"
	"testing"

	"taskguard/emulator/emulatortest"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	os.Exit(m.Run())
}
