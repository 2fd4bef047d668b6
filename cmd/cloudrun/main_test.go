package cloudrun

import (
	"testing"

	"go.uber.org/goleak"

	"taskguard/emulator/emulatortest"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	goleak.VerifyTestMain(m)
}
