package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxBlock is how many lines a block that is rewritten may have.
const maxBlock = 16

// display shows progress: on a terminal as a block of lines, one for each item,
// which is rewritten in place beneath the notes; elsewhere as plain lines. It is
// safe for concurrent use.
type display struct {
	w     io.Writer
	live  bool
	color bool
	began time.Time
	size  func() screen // where live

	mu    sync.Mutex
	items []item
	drawn []string // lines of the block that stand on the screen
	quit  chan struct{}
	ended chan struct{}
}

// item is one line of the block.
type item struct {
	name, state string
	until       time.Time // counted down to, unless zero
}

// style is an escape sequence of colours, or none.
type style string

const (
	plain  style = ""
	strong style = "1"
	good   style = "32"
	bad    style = "31"
)

// newDisplay shows names on w. Close ends it.
func newDisplay(w io.Writer, lookup func(string) (string, bool), names []string) *display {
	noColor, _ := lookup("NO_COLOR")
	terminal := isTerminal(w, lookup)
	d := &display{w: w, color: terminal && noColor == "", began: time.Now(), size: func() screen { return screenOf(w, lookup) }}
	d.live = terminal && len(names) <= maxBlock && d.size().columns > 0 // lines of unknown width cannot be taken back
	for _, name := range names {
		d.items = append(d.items, item{name: visible(name), state: "waits"})
	}
	if d.live {
		d.quit, d.ended = make(chan struct{}), make(chan struct{})
		go d.tick()
	}
	return d
}

func isTerminal(w io.Writer, lookup func(string) (string, bool)) bool {
	f, ok := fileOf(w)
	if term, _ := lookup("TERM"); !ok || term == "dumb" || term == "" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// note prints a line that stays.
func (d *display) note(s style, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.print(s, visible(fmt.Sprintf(format, args...)))
}

// set changes item i; off a terminal it prints the change.
func (d *display) set(i int, until time.Time, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.items[i].state, d.items[i].until = visible(fmt.Sprintf(format, args...)), until
	if d.live {
		d.redraw()
		return
	}
	d.print(plain, d.items[i].name+" "+d.items[i].state)
}

// close leaves the screen, and the block as it is, to others. What is told
// after that is plain lines.
func (d *display) close() {
	d.mu.Lock()
	live := d.live
	d.live, d.drawn = false, nil
	d.mu.Unlock()
	if live {
		close(d.quit)
		<-d.ended
	}
}

// tick keeps the countdowns moving.
func (d *display) tick() {
	defer close(d.ended)
	ticks := time.NewTicker(200 * time.Millisecond)
	defer ticks.Stop()
	for {
		select {
		case <-d.quit:
			return
		case <-ticks.C:
			d.mu.Lock()
			if d.live {
				d.redraw()
			}
			d.mu.Unlock()
		}
	}
}

func (d *display) print(s style, text string) {
	line := fmt.Sprintf("%5.1fs  %s", time.Since(d.began).Seconds(), text)
	if !d.live {
		printTo(d.w, "%s\n", d.paint(s, line))
		return
	}
	d.replace(d.paint(s, line) + "\n")
}

func (d *display) redraw() { d.replace("") }

// replace writes notes in the place of the block, and the block beneath them;
// nothing, where nothing has changed.
func (d *display) replace(notes string) {
	var b strings.Builder
	now := d.size()
	if now.columns <= 0 {
		now.columns = 1 // the terminal is gone, or as good as
	}
	next := block(d.items, now)
	if notes == "" && slices.Equal(next, d.drawn) {
		return
	}
	if len(d.drawn) > 0 {
		printTo(&b, "\x1b[%dA\x1b[J", rows(d.drawn, now.columns))
	}
	d.drawn = next
	b.WriteString(notes)
	for _, line := range d.drawn {
		b.WriteString(line + "\n")
	}
	_, _ = io.WriteString(d.w, b.String())
}

// block is a line for each item, cut to what fits the screen: a line that
// wraps, or one that has left at the top, could not be taken back. The last
// column stays free, as some terminals wrap as soon as it is filled.
func block(items []item, s screen) []string {
	hidden := 0
	if room := s.rows - 1; s.rows > 0 && len(items) > room {
		hidden = len(items) - max(room-1, 0)
		items = items[:len(items)-hidden]
	}
	most, width := min(nameWidth, s.columns*3/8), 0
	for _, it := range items {
		width = max(width, cells(clip(it.name, most)))
	}
	var lines []string
	for _, it := range items {
		state := it.state
		if left := time.Until(it.until); left > 0 {
			state += fmt.Sprintf(" (%.1f s)", left.Seconds())
		}
		name := clip(it.name, most)
		name = "  " + name + strings.Repeat(" ", width-cells(name)) + "  "
		lines = append(lines, cut(name+squeeze(state, s.columns-1-cells(name)), s.columns-1))
	}
	if hidden > 0 {
		lines = append(lines, cut(fmt.Sprintf("  … and %d more", hidden), s.columns-1))
	}
	return lines
}

// nameWidth is how many columns of a name are shown, where there is room.
const nameWidth = 28

func (d *display) paint(s style, text string) string {
	if !d.color || s == plain {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}
