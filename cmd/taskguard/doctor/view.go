package doctor

import (
	"strings"
	"time"

	doclock "taskguard/cmd/doclock/service"
	worker "taskguard/cmd/worker/service"
)

// names are what differs between the two services.
type names struct {
	title                          string
	environment, settings, callers part
	of                             func(Facts) Service
	refused                        func(lookup) error
}

type lookup = func(string) (string, bool)

func workerNames() names {
	return names{
		"the worker", workerEnvironment, workerSettings, workerCallers,
		func(f Facts) Service { return f.Worker },
		func(l lookup) error { _, err := worker.ParseConfig(l); return err },
	}
}

func doclockNames() names {
	return names{
		"doclock", doclockEnvironment, doclockSettings, doclockCallers,
		func(f Facts) Service { return f.Doclock },
		func(l lookup) error { _, err := doclock.ParseConfig(l); return err },
	}
}

// view is the facts, and what follows from the environments.
type view struct {
	Facts
	worker  worker.Config
	doclock doclock.Config
}

// newView reads the environments as the services would; where they are wrong the
// configurations hold defaults, and the rule "environment" says so.
func newView(f Facts) *view {
	v := &view{Facts: f}
	v.worker, _ = worker.ParseConfig(f.Worker.Environment.Value.lookup)
	v.doclock, _ = doclock.ParseConfig(f.Doclock.Environment.Value.lookup)
	return v
}

// stand is a value in the place of one that is unknown: long enough for a secret.
const stand = "unknown-unknown-unknown-unknown-unknown-unknown-"

// lookup is the environment as a service reads it.
func (e Environment) lookup(name string) (string, bool) {
	v, ok := e[name]
	if v.Secret {
		return stand, true
	}
	if name == "ANALYZER" && strings.HasPrefix(v.Value, "exec:") && len(strings.Fields(v.Value)) > 0 {
		return "builtin:document", ok // the program is in the image, not here
	}
	return v.Value, ok
}

// maxDispatch is Cloud Tasks' longest dispatch deadline.
const maxDispatch = 30 * time.Minute
