package cli

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"

	"taskguard/cmd/internal/printable"
)

// Print writes to a standard stream. It ignores the error: Run reports one of standard
// output, and one of standard error cannot be reported.
func Print(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// output keeps the first error of a Writer, so that a command whose output is lost does
// not exit 0.
type output struct {
	io.Writer

	mu  sync.Mutex
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = cmp.Or(o.err, err)
	return n, err
}

func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Progress prints lines, each with the seconds since the command began. It is safe
// for concurrent use.
type Progress struct {
	began time.Time

	mu sync.Mutex
	w  io.Writer
}

// Progress returns the command's progress, on standard output, or with --json on
// standard error.
func (c *Call) Progress() *Progress {
	if c.JSON {
		return NewProgress(c.Err)
	}
	return NewProgress(c.Out)
}

// NewProgress returns a progress that is printed on w.
func NewProgress(w io.Writer) *Progress { return &Progress{began: time.Now(), w: w} }

// Print prints one line.
func (p *Progress) Print(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	Print(p.w, "%5.1fs  %s\n", time.Since(p.began).Seconds(), printable.Line(fmt.Sprintf(format, args...)))
}
