package orchestrator

import (
	"fmt"
	"strings"
	"time"
)

// Options tune what [New] returns. The zero value is the default.
type Options struct {
	// Grace is how long an exec: program may live on after SIGTERM before it
	// gets SIGKILL. Zero: 5 s. The end of ctx may shorten it:
	// see the package's documentation.
	Grace time.Duration
	// JSON makes output of a program or an endpoint that is not JSON, no output
	// included, a failure for now with [CodeInvalidOutput].
	JSON bool
}

const defaultGrace = 5 * time.Second

// New returns the analyzer that spec names:
//
//   - builtin:document
//   - exec:PROGRAM ARG…, split at white space, with no shell and no quoting
//   - http://… or https://…
//
// It starts nothing and calls nobody; for exec: it looks the program up on PATH
// now. Its errors say what is wrong with spec and show no password or query of a
// URL. The package's documentation says what each analyzer does
// with its job.
func New(spec string, o Options) (Analyzer, error) {
	if o.Grace < 0 {
		return nil, fmt.Errorf("orchestrator: negative grace: %v", o.Grace)
	}
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	scheme, rest, found := strings.Cut(spec, ":")
	switch {
	case spec == "":
		return nil, fmt.Errorf("orchestrator: no analyzer named: want %s", wanted)
	case !found:
		return nil, fmt.Errorf("orchestrator: analyzer without a scheme: want %s", wanted)
	}
	switch scheme {
	case "builtin":
		if rest != "document" {
			return nil, fmt.Errorf("orchestrator: no builtin analyzer %q: want builtin:document", rest)
		}
		return documentAnalyzer{}, nil
	case "exec":
		return newProgram(rest, o)
	case "http", "https":
		return newEndpoint(spec, o)
	}
	return nil, fmt.Errorf("orchestrator: no analyzer scheme %q: want %s", scheme, wanted)
}

const wanted = "builtin:document, exec:PROGRAM ARG…, http://… or https://…"
