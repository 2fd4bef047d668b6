package main

import (
	"fmt"
	"strings"

	"taskguard/worker/console"
)

// visible is text of others for people to read on one line.
func visible(text string) string { return console.Legible(text) }

// visibleLines is visible for text whose line ends are meant.
func visibleLines(text string) string { return console.LegibleLines(text) }

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
