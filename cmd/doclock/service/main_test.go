package service

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"taskguard/emulator/emulatortest"
)

func TestMain(m *testing.M) {
	code := emulatortest.Main(m)
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
