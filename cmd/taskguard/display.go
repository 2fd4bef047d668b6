package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// lineWidth and maxBlock are what surely fits a terminal; its size is not asked.
const (
	lineWidth = 79
	maxBlock  = 16
)

// display shows progress: on a terminal as a block of lines, one for each item,
// which is rewritten in place beneath the notes; elsewhere as plain lines. It is
// safe for concurrent use.
type display struct {
	w     io.Writer
	live  bool
	color bool
	began time.Time

	mu    sync.Mutex
	items []item
	drawn int // lines of the block that stand on the screen
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
	d := &display{w: w, live: terminal && len(names) <= maxBlock, color: terminal && noColor == "", began: time.Now()}
	for _, name := range names {
		d.items = append(d.items, item{name: name, state: "waits"})
	}
	if d.live {
		d.quit, d.ended = make(chan struct{}), make(chan struct{})
		go d.tick()
	}
	return d
}

func isTerminal(w io.Writer, lookup func(string) (string, bool)) bool {
	f, ok := w.(*os.File)
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
	d.print(s, fmt.Sprintf(format, args...))
}

// set changes item i; off a terminal it prints the change.
func (d *display) set(i int, until time.Time, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.items[i].state, d.items[i].until = fmt.Sprintf(format, args...), until
	if d.live {
		d.redraw()
		return
	}
	d.print(plain, d.items[i].name+" "+d.items[i].state)
}

// close leaves the screen to others.
func (d *display) close() {
	if d.live {
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
			d.redraw()
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
	var b strings.Builder
	d.erase(&b)
	b.WriteString(d.paint(s, line) + "\n")
	d.draw(&b)
	_, _ = io.WriteString(d.w, b.String())
}

func (d *display) redraw() {
	var b strings.Builder
	d.erase(&b)
	d.draw(&b)
	_, _ = io.WriteString(d.w, b.String())
}

// erase moves to the beginning of the block and clears the rest of the screen.
func (d *display) erase(b *strings.Builder) {
	if d.drawn > 0 {
		printTo(b, "\x1b[%dA\x1b[J", d.drawn)
	}
	d.drawn = 0
}

func (d *display) draw(b *strings.Builder) {
	width := 0
	for _, it := range d.items {
		width = max(width, utf8.RuneCountInString(clip(it.name, 28)))
	}
	for _, it := range d.items {
		state := it.state
		if left := time.Until(it.until); left > 0 {
			state += fmt.Sprintf(" (%.1f s)", left.Seconds())
		}
		name := clip(it.name, 28)
		pad := strings.Repeat(" ", width-utf8.RuneCountInString(name))
		b.WriteString(clip("  "+name+pad+"  "+state, lineWidth) + "\n")
	}
	d.drawn = len(d.items)
}

func (d *display) paint(s style, text string) string {
	if !d.color || s == plain {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// clip shortens text to n characters, leaving its end, which tells files apart.
func clip(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return text
	}
	return "…" + string(runes[len(runes)-n+1:])
}
