package main

import "testing"

func TestWhatMovesATerminalIsShownEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"plain größe 漢字 \"q\" \\ ✓": "plain größe 漢字 \"q\" \\ ✓",
		"a\nb\tc":                   `a\nb\tc`,
		"\x1b[2J":                   `\x1b[2J`,
		"\u202efdp.exe":             `\u202efdp.exe`,
		"zero\u200bwidth":           `zero\u200bwidth`,
		"a\u00a0b\u3000c":           `a\u00a0b\u3000c`,
		"\u009b31m":                 `\u009b31m`,
		"\xff\ufffd":                `\xff` + "\ufffd",
		"":                          "",
	} {
		if got := visible(text); got != want {
			t.Errorf("visible(%+q) = %+q, want %+q", text, got, want)
		}
	}
	if got := visibleLines("a\x1b\nb\r\n"); got != "a\\x1b\nb\\r\n" {
		t.Errorf("lines: %q", got)
	}
}

func TestOneOfAThingIsSingular(t *testing.T) {
	for got, want := range map[string]string{
		counted(1, "file"): "1 file", counted(0, "file"): "0 files", counted(int64(1), "line"): "1 line",
		counted(1, "delivery"): "1 delivery", counted(2, "delivery"): "2 deliveries",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
