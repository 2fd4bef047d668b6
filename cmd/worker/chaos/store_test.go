package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"taskguard/emulator/emulatortest"
	"taskguard/emulator/google"
)

// store is a Firestore in a process of its own.
type store struct {
	host   string
	signal func(syscall.Signal) error
}

func newStore(t *testing.T, full bool) *store {
	t.Helper()
	if !full {
		p, err := start("firestore")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.end)
		return &store{host: p.address, signal: p.signal}
	}
	e, err := google.Start(t.Context(), "512m")
	if errors.Is(err, google.ErrNotFound) && !emulatortest.Required() {
		t.Skipf("CHAOS needs Google's emulator: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	child, err := listener(t.Context(), e.Host())
	if err != nil {
		t.Fatal(err)
	}
	return &store{host: e.Host(), signal: func(s syscall.Signal) error { return syscall.Kill(child, s) }}
}

// listener is the child of this process that was told to listen there.
func listener(ctx context.Context, host string) (pid int, err error) {
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, "ps", "-A", "-o", "pid=,ppid=,args=").Output()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) > 2 && words[1] == strconv.Itoa(os.Getpid()) && words[len(words)-1] == "--port="+port {
			return strconv.Atoi(words[0])
		}
	}
	return 0, fmt.Errorf("no child of this process listens at %s", host)
}
