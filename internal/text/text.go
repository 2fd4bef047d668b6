// Package text shortens texts for records, logs and messages.
package text

import (
	"regexp"
	"slices"
	"strings"
)

// Head returns the beginning of s: valid UTF-8 of at most limit bytes. Invalid bytes are dropped.
func Head(s string, limit int) string { return strings.ToValidUTF8(s[:min(limit, len(s))], "") }

// Tail returns the end of s: valid UTF-8 of at most limit bytes. Invalid bytes are dropped.
func Tail(s string, limit int) string { return strings.ToValidUTF8(s[max(0, len(s)-limit):], "") }

// Gap stands for the middle that Middle leaves out.
const Gap = " … "

// Middle returns s without its middle: valid UTF-8 of at most limit bytes. It keeps both ends,
// because a traceback has its cause at the end.
func Middle(s string, limit int) string {
	if half := (limit - len(Gap)) / 2; half > 0 && len(s) > limit {
		s = Head(s, half) + Gap + Tail(s, half)
	}
	return Head(s, limit)
}

var packages = regexp.MustCompile(`(^|: )(?:(?:orchestrator|worker|repo|lease|analysislock|taskqueue): )+`)

// Error returns the text of err for a document, an answer or a terminal. It leaves out the names of
// our packages, and the texts of the implied sentinels: they say nothing to the reader.
func Error(err error, implied ...error) string {
	s := err.Error()
	for _, sentinel := range implied {
		s = strings.ReplaceAll(s, sentinel.Error()+": ", "")
	}
	return packages.ReplaceAllString(s, "$1")
}

// Nearest returns the words for which value was probably meant, nearest first: words that begin with it, then words
// that differ in one letter, then in two. Upper and lower case are the same.
func Nearest(value string, words []string) (nearest []string) {
	value = strings.ToLower(value)
	for most := range 3 {
		for _, word := range words {
			lower := strings.ToLower(word)
			near := strings.HasPrefix(lower, value) || edits(value, lower) <= most
			if near && !slices.Contains(nearest, word) {
				nearest = append(nearest, word)
			}
		}
	}
	return nearest
}

// edits returns how many letters must be added, removed or replaced to make b of a, which is Levenshtein's distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1) // the distances of the beginnings of b to the beginning of a so far
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0]++
		for j := range len(b) {
			n := before
			if a[i] != b[j] {
				n = 1 + min(before, row[j], row[j+1])
			}
			before, row[j+1] = row[j+1], n
		}
	}
	return row[len(b)]
}
