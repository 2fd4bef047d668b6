package orchestrator

import (
	"strings"
	"unicode/utf8"
)

// messageBytes is how much of what an analyzer has said of its failure is kept.
const messageBytes = 2 << 10

// cutHead is the longest beginning of s of at most n bytes that splits no rune.
func cutHead(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// cutTail is the longest end of s of at most n bytes that splits no rune.
func cutTail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	at := len(s) - n
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	return s[at:]
}

// legible makes one message of s: trimmed, and valid UTF-8.
func legible(s string) string {
	return strings.TrimSpace(strings.ToValidUTF8(s, "\uFFFD"))
}
