package cloudrun

import (
	"testing"

	"go.uber.org/goleak"

	"taskguard/internal/emulatortest"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	goleak.VerifyTestMain(m)
}
