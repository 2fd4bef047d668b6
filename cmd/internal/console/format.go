package console

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
)

// shorten cuts the middle out of a text of more than 64 runes: ids often differ at
// their end.
func shorten(text string) string { return cli.Shorten(text, 64) }

// span formats a duration in at most two units, as console.js does.
func span(d time.Duration) string {
	s := max(int64(d/time.Second), 0)
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %02d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %02d min", s/3600, s/60%60)
	}
	return fmt.Sprintf("%d d %d h", s/86400, s/3600%24)
}

// took formats how long something took: as span, and below a second in milliseconds.
func took(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", max(d, 0).Milliseconds())
	}
	return span(d)
}

// message makes a message of several lines legible.
func message(text string) string {
	text = strings.NewReplacer("\r\n", "\n", "\t", "    ").Replace(text)
	return printable.Lines(strings.TrimRight(text, "\n "))
}

var (
	pythonTrace = regexp.MustCompile(`Traceback \(most recent call last\):|(?m:^  File ")`)
	errorLine   = regexp.MustCompile(`(?s)^.*\n([\w.]*(?:Error|Exception)(?: \[\w+\])?:[^\n]*)`)
)

// headline returns the line of a message that says what it is about: the last one of Python's
// traceback, else the last one that begins as Node's errors do, else the first one.
func headline(text string) string {
	text = message(text)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if pythonTrace.MatchString(text) {
		return lines[len(lines)-1]
	}
	if found := errorLine.FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return lines[0]
}

// number formats n with a comma between thousands.
func number(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// age formats a duration in the larger unit of span, as console.js does.
func age(d time.Duration) string {
	return strings.Join(strings.Fields(span(d))[:2], " ")
}
