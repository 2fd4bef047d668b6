package iso8601_test

import (
	"testing"
	"time"

	"taskguard/lease/iso8601"
)

// It is UTC with three decimals.
func TestFormat(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 500_999_999, time.FixedZone("", 9*60*60))
	if got, want := iso8601.Format(at), "2026-01-31T03:00:00.500Z"; got != want {
		t.Errorf("got %s; want %s", got, want)
	}
}

func TestParse(t *testing.T) {
	noon := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"2026-01-31t12:00:00z":           noon,
		"2026-01-31T12:00:00.123456789Z": noon.Add(123456789),
		"2026-01-31T21:00:00+09:00":      noon,
		"2026-01-31T21:00:00+0900":       noon,
		"2026-01-31T12:00Z":              noon,
		"20260131T120000Z":               noon,
		"2026-01-31T12:00:00":            noon,
		"2026-01-31":                     noon.Add(-12 * time.Hour),
	} {
		if got, ok := iso8601.Parse(text); !ok || !got.Equal(want) {
			t.Errorf("%s: %v, %v; want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "noon", "2026-13-31T12:00:00Z", "1769860800000"} {
		if got, ok := iso8601.Parse(text); ok {
			t.Errorf("%q: %v; want it refused", text, got)
		}
	}
}
