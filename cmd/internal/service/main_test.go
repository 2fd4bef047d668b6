package service

import (
	"testing"

	"go.uber.org/goleak"

	"taskguard/internal/testing/emulatortest"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	goleak.VerifyTestMain(m)
}
