package cloudrun

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
)

// Environment reads variables and gathers what is wrong with them, a line a
// problem, each naming its variable. An empty variable counts as unset.
type Environment struct {
	lookup   func(string) (string, bool)
	problems []error
}

// NewEnvironment reads through lookup, such as os.LookupEnv.
func NewEnvironment(lookup func(string) (string, bool)) *Environment {
	return &Environment{lookup: lookup}
}

// Err holds all problems so far; nil: none.
func (e *Environment) Err() error { return errors.Join(e.problems...) }

// Problem adds what is wrong with the variable name.
func (e *Environment) Problem(name, format string, args ...any) {
	e.Add(fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
}

// Add adds problems that name their variables themselves.
func (e *Environment) Add(problems error) { e.problems = append(e.problems, problems) }

// Text is any text.
func (e *Environment) Text(name, def string) string {
	if v, ok := e.lookup(name); ok && v != "" {
		return v
	}
	return def
}

// Name is a text that will be part of a resource's path.
func (e *Environment) Name(name, def string) string {
	v := e.Text(name, def)
	if strings.ContainsFunc(v, func(r rune) bool { return r == '/' || r <= ' ' || r > '~' }) {
		e.Problem(name, "%q is not a name", v)
	}
	return v
}

// Address is host:port, or empty.
func (e *Environment) Address(name string) string {
	v := e.Text(name, "")
	if v == "" {
		return v
	}
	if _, address, found := strings.Cut(v, "://"); found {
		e.Problem(name, "%q is not host:port; remove the scheme: %s", v, strings.TrimRight(address, "/"))
		return v
	}
	host, port, err := net.SplitHostPort(v)
	if number, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || host == "" || number == 0 {
		e.Problem(name, "%q is not host:port", v)
	}
	return v
}

// Integer is a number from lo to hi.
func (e *Environment) Integer(name string, def, lo, hi int) int {
	v := e.Text(name, "")
	if v == "" {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < lo || n > hi {
		e.Problem(name, "%q is not a number from %d to %d", v, lo, hi)
		return def
	}
	return n
}

// Duration is a positive Go duration.
func (e *Environment) Duration(name string, def time.Duration) time.Duration {
	v := e.Text(name, "")
	if v == "" {
		return def
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		e.Problem(name, "%q is not a positive duration such as 300s or 25m", v)
		return def
	}
	return d
}

// OneOf is def or one of others.
func (e *Environment) OneOf(name, def string, others ...string) string {
	v := e.Text(name, def)
	if v == def {
		return v
	}
	for _, o := range others {
		if v == o {
			return v
		}
	}
	e.Problem(name, "%q is not one of %s", v, strings.Join(append([]string{def}, others...), ", "))
	return def
}

// List is what is separated by commas.
func (e *Environment) List(name string) (all []string) {
	for part := range strings.SplitSeq(e.Text(name, ""), ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

// Level is a log's; info by default.
func (e *Environment) Level(name string) (l slog.Level) {
	if v := e.Text(name, "info"); l.UnmarshalText([]byte(v)) != nil {
		e.Problem(name, "%q is not one of debug, info, warn, error", v)
	}
	return l
}

// onCloudRun reports whether Cloud Run has started this process.
func (e *Environment) onCloudRun() bool { return e.Text("K_SERVICE", "") != "" }

// ForTests refuses on Cloud Run a variable that is for emulators and tests.
func (e *Environment) ForTests(name string) {
	if e.onCloudRun() {
		e.Stray("is for emulators and tests, and K_SERVICE says that this is Cloud Run", name)
	}
}

// Stray refuses variables that are set and would mean nothing.
func (e *Environment) Stray(why string, names ...string) {
	for _, name := range names {
		if e.Text(name, "") != "" {
			e.Problem(name, "%s", why)
		}
	}
}
