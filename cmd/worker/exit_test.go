package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestAConfigurationErrorExits2(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	for name, env := range map[string]string{
		"TASK_AUTH":            "TASK_AUTH=",
		"GOOGLE_CLOUD_PROJECT": "GOOGLE_CLOUD_PROJECT=",
		"LOCK_TTL":             "LOCK_TTL=soon",
	} {
		c.refuses(t, env, 2, name)
	}
}

func TestArgumentsExit2(t *testing.T) {
	t.Parallel()
	cmd := newCloud(t).command()
	cmd.Args = append(cmd.Args, "--help")
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(string(out), "environment") {
		t.Errorf("exit %d, %q", code, out)
	}
}

func TestAPortInUseExits1(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(listen(t, ":0").Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	newCloud(t).refuses(t, fmt.Sprint("PORT=", port), 1, "PORT")
}

// refuses checks that a worker with env does not start, and prints one line that names
// the variable.
func (c *cloud) refuses(t testing.TB, env string, code int, name string) {
	t.Helper()
	cmd := c.command(env)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	_ = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("%v: exit %d, want %d", env, got, code)
	}
	if !strings.HasPrefix(stderr.String(), name+": ") || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("%v: stderr %q, want one line naming %s", env, stderr.String(), name)
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
