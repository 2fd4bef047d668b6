// Package printable escapes untrusted text for terminals and web pages.
//
// Such text may contain characters that move a terminal's cursor, reverse the direction
// of the text that follows, or look like a space. The package replaces each character
// that is not printable by its escape sequence in Go's syntax.
package printable

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// ideographicSpace is the space of Japanese names; it is as wide as a character.
const ideographicSpace = '\u3000'

// Line returns text on one line. It escapes line ends too.
func Line(text string) string {
	var b strings.Builder
	for rest := text; rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		if invalid := r == utf8.RuneError && n == 1; !invalid && (strconv.IsPrint(r) || r == ideographicSpace) {
			b.WriteString(rest[:n])
		} else {
			quoted := strconv.Quote(rest[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		rest = rest[n:]
	}
	return b.String()
}

// Lines is like Line, but keeps line ends.
func Lines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Line(line)
	}
	return strings.Join(lines, "\n")
}
