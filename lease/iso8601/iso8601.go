// Package iso8601 formats times as documents store them, and parses the forms that
// other programs write.
package iso8601

import (
	"strings"
	"time"
)

// layout is UTC, exactly three decimals, Z.
const layout = "2006-01-02T15:04:05.000Z"

// Format formats t in UTC, with exactly three decimals and Z.
func Format(t time.Time) string { return t.UTC().Format(layout) }

// layouts are forms of ISO 8601, each with any number of decimals of a second.
var layouts = []string{
	time.RFC3339, "2006-01-02T15:04:05Z0700", "2006-01-02T15:04Z07:00", "20060102T150405Z07:00",
	"2006-01-02T15:04:05", "2006-01-02",
}

// Parse parses ISO 8601 of any precision, in upper or lower case. A time without a
// zone is UTC. It reports false for other text.
func Parse(s string) (time.Time, bool) {
	for _, layout := range layouts {
		if t, err := time.Parse(layout, strings.ToUpper(s)); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}
