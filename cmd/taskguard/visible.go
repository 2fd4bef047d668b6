package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// visible is text for people to read on one line. Names of files and fields of
// documents may hold what moves a terminal's cursor or turns its text around,
// so each rune that shows nothing by itself is written as Go escapes it.
func visible(text string) string {
	var b strings.Builder
	for rest := text; rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		if wrong := r == utf8.RuneError && n == 1; !wrong && strconv.IsGraphic(r) {
			b.WriteString(rest[:n])
		} else {
			quoted := strconv.QuoteToGraphic(rest[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		rest = rest[n:]
	}
	return b.String()
}

// visibleLines is visible for text whose line ends are meant.
func visibleLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = visible(line)
	}
	return strings.Join(lines, "\n")
}

// counted is a number with its noun.
func counted[N int | int64](n N, noun string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, noun)
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
