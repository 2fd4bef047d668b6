// Package text shortens texts for records, logs and messages.
package text

import (
	"regexp"
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
