package console

import (
	"fmt"
	"time"
)

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
