// Package env reads a strict environment: variables with defaults, whose problems are
// reported together, each with the variable's name.
package env

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskguard/internal/text"
)

// Environment reads variables and collects their problems. Each problem is one line that begins
// with the variable's name. An empty variable counts as unset.
type Environment struct {
	lookup   func(string) (string, bool)
	problems []error
	read     []string // names
}

// NewEnvironment returns an Environment that reads with lookup, such as os.LookupEnv.
func NewEnvironment(lookup func(string) (string, bool)) *Environment {
	return &Environment{lookup: lookup}
}

// Err returns all problems so far.
func (e *Environment) Err() error { return errors.Join(e.problems...) }

// Problem adds a problem of a variable.
func (e *Environment) Problem(name, format string, args ...any) {
	e.Add(fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
}

// Refuse adds a problem of a variable that is wrong.
func (e *Environment) Refuse(wrong bool, name, format string, args ...any) {
	if wrong {
		e.Problem(name, format, args...)
	}
}

// Add adds one problem or several joined ones, each of which begins with its variable's name. It
// ignores nil and problems that it has.
func (e *Environment) Add(problems error) {
	if problems == nil {
		return
	}
	all := []error{problems}
	if joined, ok := problems.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, p := range all {
		if !slices.ContainsFunc(e.problems, func(other error) bool { return other.Error() == p.Error() }) {
			e.problems = append(e.problems, p)
		}
	}
}

// Named returns err, unless it is nil, as a problem of a variable.
func Named(name string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %s", name, text.Error(err))
	}
	return err
}

// Lookup reads a variable as os.LookupEnv does.
func (e *Environment) Lookup(name string) (string, bool) {
	e.read = append(e.read, name)
	return e.lookup(name)
}

// Text reads any text. def is the default.
func (e *Environment) Text(name, def string) string {
	if v, ok := e.Lookup(name); ok && v != "" {
		return v
	}
	return def
}

// Checked reads a text that check accepts, such as CheckName.
func (e *Environment) Checked(name, def string, check func(string) error) string {
	v := e.Text(name, def)
	e.Add(Named(name, check(v)))
	return v
}

// CheckName returns an error if v cannot be a part of a resource's path. Empty is allowed.
func CheckName(v string) error {
	if strings.ContainsFunc(v, func(r rune) bool { return r == '/' || r <= ' ' || r > '~' }) {
		return fmt.Errorf("%q is not a name", v)
	}
	return nil
}

// CheckAddress returns an error if v is not host:port. Empty is allowed.
func CheckAddress(v string) error {
	if v == "" {
		return nil
	}
	if _, address, found := strings.Cut(v, "://"); found {
		return fmt.Errorf("%q is not host:port; remove the scheme: %s", v, strings.TrimRight(address, "/"))
	}
	host, port, err := net.SplitHostPort(v)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || host == "" || number == 0 {
		return fmt.Errorf("%q is not host:port", v)
	}
	return nil
}

// Integer reads a number from lo to hi.
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

// Duration reads a positive Go duration.
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

// DurationOrZero reads a positive Go duration, or 0.
func (e *Environment) DurationOrZero(name string, def time.Duration) time.Duration {
	if d, err := time.ParseDuration(e.Text(name, def.String())); err == nil && d == 0 {
		return 0
	}
	return e.Duration(name, def)
}

// OneOf reads def or one of others.
func (e *Environment) OneOf(name, def string, others ...string) string {
	v := e.Text(name, def)
	if v == def || slices.Contains(others, v) {
		return v
	}
	e.Problem(name, "%q is not one of %s", v, strings.Join(append([]string{def}, others...), ", "))
	return def
}

// List reads values separated by commas.
func (e *Environment) List(name string) (all []string) {
	for part := range strings.SplitSeq(e.Text(name, ""), ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

// Level reads a log level; info by default.
func (e *Environment) Level(name string) (l slog.Level) {
	v := e.Text(name, "info")
	e.Refuse(l.UnmarshalText([]byte(v)) != nil, name, "%q is not one of debug, info, warn, error", v)
	return l
}

// onCloudRun reports whether Cloud Run has started this process.
func (e *Environment) onCloudRun() bool { return e.Text("K_SERVICE", "") != "" }

// forTests refuses, on Cloud Run, a variable that is for emulators and tests.
func (e *Environment) forTests(name string) {
	if e.onCloudRun() {
		e.Unused("is for emulators and tests, and K_SERVICE shows that this is Cloud Run", name)
	}
}

// Unused refuses variables that have no effect, and gives the reason.
func (e *Environment) Unused(reason string, names ...string) {
	for _, name := range names {
		e.Refuse(e.Text(name, "") != "", name, "%s", reason)
	}
}
