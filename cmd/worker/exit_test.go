package main

import (
	"bytes"
	"encoding/json"
	"math"
	"net"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestWhatPreventsAStartIsOneLineAndTheExitCode(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	_, port, err := net.SplitHostPort(listen(t, ":0").Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for env, code := range map[string]int{"TASK_AUTH=": 2, "PORT=" + port: 1} {
		cmd := c.command(env)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		_ = cmd.Run()
		name, _, _ := strings.Cut(env, "=")
		if got := cmd.ProcessState.ExitCode(); got != code || !strings.HasPrefix(stderr.String(), name+": ") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%v: exit %d, stderr %q; want %d and one line naming %s", env, got, stderr.String(), code, name)
		}
	}
}

func TestTheContainersMemoryLimitIsTheRuntimesUnlessOneIsSet(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	contained := int64(math.MaxInt64) // none
	if limit, err := memlimit.FromCgroup(); err == nil {
		contained = int64(float64(limit) * 0.9)
	}
	for env, want := range map[string]int64{"LOG_LEVEL=info": contained, "GOMEMLIMIT=100MiB": 100 << 20} {
		var line struct {
			Limit int64 `json:"memory_limit"`
		}
		if err := json.Unmarshal([]byte(c.start(t, env).config), &line); err != nil || line.Limit != want {
			t.Errorf("%s: a limit of %d bytes, want %d (%v)", env, line.Limit, want, err)
		}
	}
}
