package installed

import (
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// groupOf returns the id of the process group of the emulator at host.
func groupOf(t *testing.T, host string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes(t) {
		if strings.HasSuffix(p, "--port="+port) {
			return strings.Fields(p)[0]
		}
	}
	t.Fatalf("no process has --port=%s", port)
	return ""
}

// members returns the processes of a group.
func members(t *testing.T, id string) []string {
	t.Helper()
	return slices.DeleteFunc(processes(t), func(p string) bool { return strings.Fields(p)[0] != id })
}

// processes returns the group, state and command line of every process but the
// dead ones that no one has waited for.
func processes(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-A", "-ww", "-o", "pgid=,stat=,args=").Output()
	if err != nil {
		t.Fatalf("ps: %v", err)
	}
	var alive []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(strings.Fields(line)[1], "Z") {
			alive = append(alive, line)
		}
	}
	return alive
}
