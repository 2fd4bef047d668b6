//go:build linux || darwin

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

var (
	shown = regexp.MustCompile(`(?m)^ +\$ (taskguard .+)\n((?:\n? +[^\s$].*\n)*)`)
	// noise are the lines that each command writes beside its answer: what it reads, and its log.
	noise = regexp.MustCompile(`(?m)^(?:time=.*|taskguard \w+: (?:reading )?demo-taskguard / .*)\n`)
)

// The values that differ between two runs of a command.
var values = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z`), "TIME"},
	{regexp.MustCompile(`local?(?:/\w+)+`), "OWNER"},
	{regexp.MustCompile(`held by \S+`), "held by OWNER"},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "KEY"},
	{regexp.MustCompile(`\b\d+ min(?: \d+ s)?\b|\b(?:\d+m)?\d+(?:\.\d+)? ?m?s\b`), "DURATION"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

// plain returns the lines of a command's output without what differs between two runs.
func plain(output string) (lines []string) {
	output = noise.ReplaceAllString(output, "")
	for _, v := range values {
		output = v.pattern.ReplaceAllString(output, v.name)
	}
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// The commands of fix-an-analysis.md, in their order, print what the page shows.
func TestFix_Commands(t *testing.T) {
	env := examplestest.Start(t, "local", "MAX_ATTEMPTS=3", "MAX_RUNS=10",
		"ANALYZER=exec:/bin/sh "+must.Get(filepath.Abs("examples/shell/practise.sh"))(t))
	bin := t.TempDir()
	must.OK(t, os.Symlink(examplestest.Build(t, "taskguard/cmd/taskguard"), filepath.Join(bin, "taskguard")))
	env = append(env, "PATH="+bin+":"+os.Getenv("PATH"))
	run := func(command string) string {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", command)
		cmd.Env = env
		out, _ := cmd.CombinedOutput() // the page shows refusals too
		return string(out)
	}
	page := read(t, "fix-an-analysis.md")
	for _, submission := range regexp.MustCompile(`(?m)^ +(taskguard submit .*)$`).FindAllStringSubmatch(page, -1) {
		run(submission[1])
	}
	await := func(parts ...string) {
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			status := run("taskguard status")
			printed := func(part string) bool { return strings.Contains(status, part) }
			missing := slices.DeleteFunc(slices.Clone(parts), printed)
			if len(missing) == 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%q are missing in\n%s", missing, status)
			}
		}
	}
	await("order-1  charge", "attempts_exhausted, last: ocr_down", "\nreport-7  1", "\nreport-9  1")

	examples := shown.FindAllStringSubmatch(page, -1)
	if len(examples) < 10 {
		t.Fatalf("the page shows %d commands", len(examples))
	}
	for _, example := range examples {
		if strings.Contains(example[1], "--dry-run") {
			await("attempts_exhausted, last: ocr_down") // it was requeued, and fails again
		}
		output := run(example[1])
		got, want := plain(output), plain(example[2])
		if len(want) > 0 && want[0] == "…" {
			want = want[1:]
			got = got[max(0, len(got)-len(want)):]
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s prints\n%s\nand the page shows\n%s", example[1], output, example[2])
		}
	}
}
