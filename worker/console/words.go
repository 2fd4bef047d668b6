package console

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Legible is text of others for people to read on one line. It may hold what moves
// a terminal's cursor or turns text around, or looks like a space and is none, so
// each rune that shows nothing by itself is written as Go escapes it.
func Legible(text string) string {
	var b strings.Builder
	for rest := text; rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		if wrong := r == utf8.RuneError && n == 1; !wrong && strconv.IsPrint(r) {
			b.WriteString(rest[:n])
		} else {
			quoted := strconv.Quote(rest[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		rest = rest[n:]
	}
	return b.String()
}

// LegibleLines is Legible for text whose line ends are meant.
func LegibleLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Legible(line)
	}
	return strings.Join(lines, "\n")
}

// maxBrief is how many runes of a text stand in a table.
const maxBrief = 64

// brief is a legible text without its middle: ids often differ at their end.
func brief(text string) string {
	r := []rune(text)
	if len(r) <= maxBrief {
		return text
	}
	return string(r[:maxBrief/2]) + "…" + string(r[len(r)-maxBrief/2+1:])
}

// span is a duration in two units at most; console.js writes it likewise.
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

// age is a duration in one unit; console.js writes it likewise.
func age(d time.Duration) string {
	s := max(int64(d/time.Second), 0)
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min", s/60)
	case s < 2*86400:
		return fmt.Sprintf("%d h", s/3600)
	}
	return fmt.Sprintf("%d d", s/86400)
}
