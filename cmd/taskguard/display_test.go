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
	d.note(bad, "killed %d", 1)
	d.set(0, time.Time{}, "runs on %s", "worker 1")
	d.close()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.HasSuffix(lines[0], "s  killed 1") || !strings.HasSuffix(lines[1], "s  a.txt runs on worker 1") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("got %q", out.String())
	}
}

func TestOnATerminalTheBlockIsRewrittenBelowTheNotes(t *testing.T) {
	var out bytes.Buffer
	d := &display{w: &out, live: true, color: true, began: time.Now(), items: []item{{name: "a", state: "waits"}, {name: "long name", state: "waits"}}}
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
		if n := len([]rune(strings.TrimSpace(line))); n > lineWidth {
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
		"a terminal": {vars{"TERM": "xterm"}, true, true}, // a character device, as a terminal is
		"NO_COLOR":   {vars{"TERM": "xterm", "NO_COLOR": "1"}, true, false},
		"dumb":       {vars{"TERM": "dumb"}, false, false},
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

func TestLongNamesAreShortenedFromTheFront(t *testing.T) {
	if got := clip("a/long/path/größe.go", 9); got != "…größe.go" {
		t.Errorf("got %q", got)
	}
	if got := clip("short", 5); got != "short" {
		t.Errorf("got %q", got)
	}
}
