package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"taskguard/internal/testing/emulatortest"
)

func TestMain(m *testing.M) {
	if code, err := strconv.Atoi(os.Getenv("TEST_EXIT")); err == nil {
		Exit("p", func(context.Context, func(string) (string, bool), io.Writer) (int, error) {
			return code, map[bool]error{true: errors.New("why")}[code > 0]
		})
		panic("it goes on")
	}
	emulatortest.Isolate()
	goleak.VerifyTestMain(m)
}

func TestExit(t *testing.T) {
	for _, tc := range []struct {
		code string
		args []string
		want string
	}{
		{"0", nil, "exit 0: "}, {"3", nil, "exit 3: why\n"}, {"0", []string{"x"}, "exit 2: p takes no arguments: "},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], tc.args...)
		cmd.Env = append(os.Environ(), "TEST_EXIT="+tc.code)
		out, _ := cmd.CombinedOutput()
		got := fmt.Sprintf("exit %d: %s", cmd.ProcessState.ExitCode(), out)
		if !strings.HasPrefix(got, tc.want) || strings.Count(got, "\n") > 1 {
			t.Errorf("%q: %s, want %s", tc.args, got, tc.want)
		}
	}
}
