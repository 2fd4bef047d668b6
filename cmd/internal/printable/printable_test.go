package printable

import "testing"

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"größe 漢字 \"q\" \\ ✓": "größe 漢字 \"q\" \\ ✓",
		"a\nb\tc":             `a\nb\tc`,
		"\x1b[2J":             `\x1b[2J`,
		"\u202efdp.exe":       `\u202efdp.exe`,
		"zero\u200bwidth":     `zero\u200bwidth`,
		"a\u00a0b":            `a\u00a0b`,
		"山田\u3000太郎":          "山田\u3000太郎",
		"\u009b31m":           `\u009b31m`,
		"\xff\ufffd":          `\xff` + "\ufffd",
	} {
		if got := Line(text); got != want {
			t.Errorf("Line(%+q) = %+q, want %+q", text, got, want)
		}
	}
	if got := Lines("a\x1b\nb\r\n"); got != "a\\x1b\nb\\r\n" {
		t.Errorf("lines: %q", got)
	}
}
