package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"taskguard/cmd/internal/printable"
	"taskguard/lease/iso8601"
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

// Count returns a number with its noun: "1 file", "2 deliveries".
func Count[N int | int64](n N, noun string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, noun)
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Shorten replaces the middle of a text that is longer than n runes by an ellipsis.
// It keeps more of the end, which holds the name of a file and the cause of an error.
func Shorten(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return text
	}
	begin := n / 3
	return string(runes[:begin]) + "…" + string(runes[len(runes)-(n-1-begin):])
}

// Fit shortens a text to n runes if standard output is a terminal.
func (c *Call) Fit(text string, n int) string {
	stdout, _ := c.Out.(*output)
	if stdout == nil {
		return text
	}
	file, _ := stdout.Writer.(*os.File)
	if info, err := file.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 { // or no file
		return text
	}
	return Shorten(text, n)
}

// Duration formats d with format. It returns "" for more than an hour, as a time of day is
// easier to read then.
func Duration(d time.Duration, format string) string {
	switch {
	case d > time.Hour:
		return ""
	case d >= time.Minute:
		return fmt.Sprintf(format, d.Round(time.Second))
	}
	return fmt.Sprintf(format, fmt.Sprintf("%.1f s", d.Seconds()))
}

// ParseTime reads a time such as 2026-01-31T12:00:00Z, or how long ago it was, such as 90m or 2d.
func ParseTime(text string) (at func(now time.Time) time.Time, err error) {
	if fixed, ok := iso8601.Parse(text); ok {
		return func(time.Time) time.Time { return fixed }, nil
	}
	days, rest := "0", text
	if before, after, found := strings.Cut(text, "d"); found {
		days, rest = before, cmp.Or(after, "0")
	}
	n, err := strconv.ParseUint(days, 10, 16)
	ago, restErr := time.ParseDuration(rest)
	if ago += time.Duration(n) * 24 * time.Hour; err != nil || restErr != nil || ago < 0 {
		return nil, errors.New("want a duration such as 90m or 2d, or a time such as 2026-01-31T12:00:00Z")
	}
	return func(now time.Time) time.Time { return now.Add(-ago) }, nil
}

// Exports returns commands for a shell that set variables.
func Exports(vars map[string]string) string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		text += "export " + name + "=" + Quote(vars[name]) + "\n"
	}
	return text
}

// Program returns what starts this program again, for a command that a message names: the path that was typed, or the
// name that the shell finds.
func Program() string {
	if buildDirectory.MatchString(os.Args[0]) { // go run deletes it
		return "go run ./cmd/taskguard"
	}
	return Quote(os.Args[0])
}

// buildDirectory matches a directory in which go run has built a program.
var buildDirectory = regexp.MustCompile(`/go-build\d*/`)

// plainWord matches words that a shell does not change.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,-]+$`)

// Quote returns text as one word of a POSIX shell.
func Quote(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
