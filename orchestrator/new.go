package orchestrator

import (
	"errors"
	"strings"
)

// Options configures [New]. The zero value is the default.
type Options struct {
	// JSON requires the output of a program or an endpoint to be JSON. Other output, also
	// empty output, is a [FailureError] with [CodeInvalidOutput].
	JSON bool
	// Env lists the variables that a program gets from this process's environment, in
	// addition to the default ones: names, or prefixes of names with a * at the end.
	Env []string
}

// New returns the analyzer that spec names:
//
//   - builtin:document
//   - exec:PROGRAM ARG…, split at white space, with no shell and no quoting
//   - http://… or https://…
//
// It starts no program and sends no request; for exec: it looks the program up on
// PATH now. Its errors show no password or query of a URL. The package's
// documentation describes each analyzer.
func New(spec string, o Options) (Analyzer, error) {
	scheme, rest, _ := strings.Cut(spec, ":")
	switch {
	case spec == "builtin:document":
		return documentAnalyzer{}, nil
	case scheme == "exec":
		return newProgram(rest, o)
	case scheme == "http", scheme == "https":
		return newEndpoint(spec, o)
	}
	return nil, errors.New("orchestrator: the analyzer is not builtin:document, exec:PROGRAM ARG…, http://… or https://…")
}
