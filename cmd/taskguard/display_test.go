package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func TestOffATerminalProgressIsPlainLines(t *testing.T) {
	var out bytes.Buffer
	d := newDisplay(&out, vars{"TERM": "xterm"}.lookup, []string{"a.txt"})
	d.note(bad, "killed %d\x1b[2J", 1)
	d.set(0, time.Time{}, "runs on %s", "worker 1")
	d.close()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.HasSuffix(lines[0], `s  killed 1\x1b[2J`) || !strings.HasSuffix(lines[1], "s  a.txt runs on worker 1") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("got %q", out.String())
	}
}

func TestOnATerminalTheBlockIsRewrittenBelowTheNotes(t *testing.T) {
	var out bytes.Buffer
	d := &display{w: &out, live: true, color: true, began: time.Now(), size: func() screen { return screen{80, 24} }, items: []item{{name: "a", state: "waits"}, {name: "long name", state: "waits"}}}
	d.set(1, time.Time{}, "runs")
	d.set(0, time.Now().Add(time.Hour), "expires")
	d.note(bad, "killed")
	frames := strings.Split(out.String(), "\x1b[2A\x1b[J")
	if len(frames) != 3 {
		t.Fatalf("%d frames in %q, want 3", len(frames), out.String())
	}
	if want := "  a          waits\n  long name  runs\n"; frames[0] != want {
		t.Errorf("first frame %q, want %q", frames[0], want)
	}
	last := strings.Split(frames[2], "\n")
	if !strings.HasPrefix(last[0], "\x1b[31m") || !strings.HasSuffix(last[0], "killed\x1b[0m") || !strings.HasPrefix(last[1], "  a          expires (3") {
		t.Errorf("last frame %q", last)
	}
	for line := range strings.Lines(frames[2]) {
		if n := len([]rune(strings.TrimSpace(line))); n > 79 {
			t.Errorf("a line of %d characters", n)
		}
	}
}

func TestNoColorMeansNoColor(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close() //nolint:errcheck // nothing is written
	for name, tc := range map[string]struct {
		env         vars
		live, color bool
	}{
		"a terminal":    {vars{"TERM": "xterm", "COLUMNS": "80"}, true, true}, // a character device, as a terminal is
		"unknown width": {vars{"TERM": "xterm"}, false, true},
		"NO_COLOR":      {vars{"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}, true, false},
		"dumb":          {vars{"TERM": "dumb", "COLUMNS": "80"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisplay(null, tc.env.lookup, []string{"a"})
			defer d.close()
			if d.live != tc.live || d.color != tc.color {
				t.Errorf("live, color = %v, %v, want %v, %v", d.live, d.color, tc.live, tc.color)
			}
		})
	}
}
