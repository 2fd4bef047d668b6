package text_test

import (
	"slices"
	"testing"

	"taskguard/internal/text"
)

func TestATextIsCutBetweenRunes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cut   func(s string, limit int) string
		s     string
		limit int
		want  string
	}{
		{"a head that fits", text.Head, "aé", 3, "aé"},
		{"a head within a rune", text.Head, "aéb", 2, "a"},
		{"a head with an invalid byte", text.Head, "a\xffb", 3, "ab"},
		{"no head", text.Head, "é", 0, ""},
		{"a tail that fits", text.Tail, "éa", 3, "éa"},
		{"a tail within a rune", text.Tail, "béa", 2, "a"},
		{"a tail with an invalid byte", text.Tail, "a\xffb", 3, "ab"},
		{"no tail", text.Tail, "é", 0, ""},
		{"both ends that fit", text.Middle, "0123456789", 10, "0123456789"},
		{"both ends", text.Middle, "0123456789", 9, "01 … 89"},
		{"both ends within runes", text.Middle, "aééééb", 9, "a … b"},
		{"no room for a gap", text.Middle, "0123456789", 4, "0123"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.cut(tc.s, tc.limit); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestNearest(t *testing.T) {
	words := []string{"submit", "status", "restore", "resolve", "recover", "LOCK_TTL"}
	for value, want := range map[string][]string{
		"re":        {"restore", "resolve", "recover"},
		"resore":    {"restore", "resolve"},
		"recove":    {"recover", "resolve"},
		"statsu":    {"status"},
		"ubmitt":    {"submit"},
		"xyzstatus": nil,
		"lock_tlt":  {"LOCK_TTL"},
	} {
		if got := text.Nearest(value, words); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
}
