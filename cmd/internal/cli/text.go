package cli

import (
	"fmt"
	"strings"
	"time"
)

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
