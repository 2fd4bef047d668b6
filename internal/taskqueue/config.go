package taskqueue

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// Config is a queue of Cloud Tasks, and how its tasks call the service. All programs here read
// its fields from the same environment variables, so its errors name these variables.
type Config struct {
	Name      string // TASK_QUEUE: projects/P/locations/L/queues/Q
	TargetURL string // TASK_TARGET_URL: the service's base URL, http or https
	Caller    string // TASK_CALLER: the service account whose OIDC token the tasks carry; empty: no token
	Audience  string // TASK_AUDIENCE: of that token; empty: TargetURL, without a slash at its end
	// EmulatorHost is CLOUD_TASKS_EMULATOR_HOST: the host:port of an emulator, plaintext and without
	// authentication; empty: Google's.
	EmulatorHost string
}

var (
	queuePath = regexp.MustCompile(`^projects/[A-Za-z0-9.:-]+/locations/[A-Za-z0-9-]+/queues/[A-Za-z0-9-]{1,100}$`)
	account   = regexp.MustCompile(`^[^@\s]+@[^@\s]+\.[^@\s]+$`)
)

// maxURL is Cloud Tasks' limit, in bytes, of a task's whole URL.
const maxURL = 2083

// Check returns an error for each problem, joined. Each names its variable.
func (c Config) Check() error {
	var problems []error
	problem := func(name, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
	}

	switch {
	case c.Name == "":
		problem("TASK_QUEUE", "must be set, to projects/P/locations/L/queues/Q")
	case !queuePath.MatchString(c.Name):
		problem("TASK_QUEUE", "%q is not of the form projects/P/locations/L/queues/Q", c.Name)
	}

	if c.TargetURL == "" {
		problem("TASK_TARGET_URL", "must be set together with TASK_QUEUE, to the worker's base URL")
	} else if reason := badTarget(c.TargetURL); reason != "" {
		problem("TASK_TARGET_URL", "%s", reason)
	}
	if c.Caller != "" && !account.MatchString(c.Caller) {
		problem("TASK_CALLER", "%q is not the e-mail address of a service account", c.Caller)
	}
	return errors.Join(problems...)
}

// Filled returns c with the Audience and without a slash at the end of TargetURL. The audience is
// compared as a whole, so a slash would matter.
func (c Config) Filled() Config {
	c.TargetURL = strings.TrimRight(c.TargetURL, "/")
	c.Audience = cmp.Or(c.Audience, c.TargetURL)
	return c
}

// badTarget describes the problem of a base URL, without repeating a password.
func badTarget(target string) string {
	u, err := url.Parse(target)
	switch {
	case err != nil:
		return "is not a URL"
	case u.User != nil:
		return "must not hold a user or a password"
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Sprintf("%q is not an http or https URL", target)
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Sprintf("%q is not a base URL: it has a query or a fragment", target)
	case len(target)+len(DefaultPath) > maxURL:
		return fmt.Sprintf("is longer than Cloud Tasks' %d bytes", maxURL)
	}
	return ""
}
