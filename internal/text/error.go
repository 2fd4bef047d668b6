package text

import (
	"regexp"
	"strings"
)

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
