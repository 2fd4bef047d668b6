package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestLinesAreCutToCellsNotBytes(t *testing.T) {
	for _, tc := range []struct {
		text, front, end string
		n                int
	}{
		{"short", "short", "short", 5},
		{"größe.go", "größ…", "…e.go", 5},
		{"漢字漢字", "漢字…", "…漢字", 5},
		{"漢字漢字", "漢…", "…字", 4},
		{"e\u0301e\u0301e\u0301", "e\u0301…", "…e\u0301", 2},
		{"ab", "…", "…", 1},
	} {
		if got := cut(tc.text, tc.n); got != tc.front || cells(got) > tc.n {
			t.Errorf("cut(%q, %d) = %q, want %q", tc.text, tc.n, got, tc.front)
		}
		if got := clip(tc.text, tc.n); got != tc.end || cells(got) > tc.n {
			t.Errorf("clip(%q, %d) = %q, want %q", tc.text, tc.n, got, tc.end)
		}
	}
	if got := cut("ab", 0); got != "" {
		t.Errorf("cut to nothing is %q", got)
	}
}

func TestALineOfTheBlockKeepsTheEndOfAFailure(t *testing.T) {
	lines := block([]item{{name: "a.txt", state: "FAILED analyzer_failed: python ended with exit status 1: Traceback: KeyError: 'text'"}}, screen{60, 24})
	if want := "  a.txt  FAILED analyzer_…us 1: Traceback: KeyError: 'text'"; len(lines) != 1 || lines[0] != want || cells(want) >= 60 {
		t.Errorf("%q, want %q", lines, want)
	}
}

func TestTheDemosTableFitsItsScreen(t *testing.T) {
	rows := []*row{
		{Name: "orchestrator/some/directory/storable.go", Status: "READY", Result: map[string]any{"lines": int64(123456)}, tally: tally{Deliveries: 10}, FinishedBy: 2},
		{Name: "go.mod", Status: "READY", Result: map[string]any{"lines": int64(7)}},
	}
	for _, columns := range []int{60, 79, 80, 100, 0} {
		var out bytes.Buffer
		d := &demonstration{c: &call{streams: streams{out: &out}, lookup: vars{"COLUMNS": fmt.Sprint(columns)}.lookup}}
		if err := d.table(rows); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := cells(strings.TrimSuffix(line, "\n")); columns > 0 && n >= columns {
				t.Errorf("%d cells on %d columns: %q", n, columns, line)
			}
		}
		if wide := columns == 0 || columns >= 80; strings.Contains(out.String(), "123456 lines") != wide || !strings.Contains(out.String(), "storable.go") {
			t.Errorf("on %d columns:%s", columns, out.String())
		}
	}
}

func TestABlockFitsItsScreen(t *testing.T) {
	var items []item
	for i := range 6 {
		items = append(items, item{name: fmt.Sprintf("漢字漢字漢字漢字漢字漢字漢字漢字-%d", i), state: "runs on worker 1, token 1", until: time.Now().Add(time.Hour)})
	}
	for columns := 1; columns <= 120; columns++ {
		for room := range 12 {
			lines := block(items, screen{columns, room})
			if room > 1 && len(lines) >= room {
				t.Errorf("%d lines on %d rows", len(lines), room)
			}
			if columns > 1 && rows(lines, columns) != len(lines) {
				t.Errorf("%q wraps at %d columns", lines, columns)
			}
		}
	}
	last := block(items, screen{80, 5})
	if want := "  … and 3 more"; len(last) != 4 || last[3] != want {
		t.Errorf("%q, want it to end with %q", last, want)
	}
}

// What stands on the screen wraps when the terminal gets narrower; all of it
// is taken back, so nothing is repeated.
func TestAfterAResizeTheBlockIsTakenBackAsItStands(t *testing.T) {
	var out bytes.Buffer
	now := screen{80, 24}
	d := &display{w: &out, live: true, began: time.Now(), size: func() screen { return now }, quit: make(chan struct{}), ended: make(chan struct{})}
	close(d.ended)
	d.items = []item{{name: "a", state: strings.Repeat("x", 45)}, {name: "b", state: "short"}}
	d.redraw() // 50 cells, and 10
	now.columns = 20
	d.redraw()
	d.redraw() // nothing has changed, nothing is written
	d.set(1, time.Time{}, "longer")
	if got := strings.Count(out.String(), "\x1b[4A\x1b[J"); got != 1 {
		t.Errorf("%d times 3 + 1 rows are taken back, want once: %q", got, out.String())
	}
	if got := strings.Count(out.String(), "\x1b[2A\x1b[J"); got != 1 {
		t.Errorf("2 rows are taken back %d times, want once: %q", got, out.String())
	}
	if !strings.Contains(out.String(), "\x1b[2A\x1b[J  a  xxxx…"+strings.Repeat("x", 9)+"\n") {
		t.Errorf("%q, want the second frame of the narrow screen cut", out.String())
	}
	d.close()
	before := out.Len()
	d.set(1, time.Time{}, "done")
	if got := out.String()[before:]; strings.Contains(got, "\x1b") || !strings.HasSuffix(got, "b done\n") {
		t.Errorf("after its end the display wrote %q, want a plain line", got)
	}
}
