package cli

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"time"

	"taskguard/lease/iso8601"
)

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
