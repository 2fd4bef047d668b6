package doctor

import (
	"maps"
	"slices"
	"strings"
)

// service is one of the two services.
type service struct {
	Service
	title             string
	settings, callers Part
	parse             func(lookup) error
	own               bool // it is another program of the user, which may have other variables
}

// checkService applies the rules for either service.
func (d *diagnosis) checkService(s service) {
	if !d.read(s.settings) {
		return
	}

	// A release sends the requests to one revision, and a change of a setting makes another.
	if s.Serving != s.Newest {
		severity := Problem
		if s.NewestShare > 0 { // a release is under way
			severity = Advice
		}
		d.add(severity, "traffic",
			"%s has its last change in %s, which gets %d %% of the requests; most go to %s, which is checked.",
			s.Name, s.Newest, s.NewestShare, s.Serving).
			fix("Test the newest revision, and send them to it (docs/operations.md, Change a setting).")
	}

	d.checkEnvironment(s)
	if s.value("SESSION_SECRET") != "" {
		d.problem("plain-secret",
			"SESSION_SECRET is in plain text among the service's settings: who may view them can make a session.").
			fix("Create a new one in Secret Manager and refer to it, in one command " +
				"(--remove-env-vars=SESSION_SECRET --update-secrets=SESSION_SECRET=taskguard-session:latest).")
	}
	d.checkCallers(s)
}

// checkEnvironment finds the variables that the service refuses to start with, and those that it does
// not read although they look like its own by their first word. Others may be the analyzer's.
func (d *diagnosis) checkEnvironment(s service) {
	read, words := map[string]bool{}, map[string]bool{}
	err := s.parse(func(name string) (string, bool) {
		read[name] = true
		if word, _, several := strings.Cut(name, "_"); several && word != "GOOGLE" && word != "OTEL" {
			words[word] = true
		}
		return s.lookup(name)
	})

	if err != nil {
		for line := range strings.Lines(err.Error()) {
			name, what, _ := strings.Cut(strings.TrimSpace(line), ": ")
			if s.Environment[name] == Secret {
				continue // it is unknown, not wrong
			}
			d.problem("environment", "%s will not start: %s: %s.", s.title, name, what).
				fix("Correct %s (--update-env-vars), or remove what does not belong (--remove-env-vars).", name)
		}
	}

	severity := Problem
	if s.own || s.value("ANALYZER_ENV") != "" { // the analyzer may read it
		severity = Advice
	}
	for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
		if word, _, _ := strings.Cut(strings.ToUpper(name), "_"); words[word] && !read[name] {
			d.add(severity, "unknown-variable",
				"%s does not read the variable %s: its name may be misspelled.", s.title, name).
				fix("Correct the name, or remove it unless the analyzer reads it (--remove-env-vars=%s).", name)
		}
	}
}

// checkCallers finds a service that lets anybody in, or nobody.
func (d *diagnosis) checkCallers(s service) {
	mode, checked := s.value("TASK_AUTH"), s.InvokerCheck
	if mode == "iam" && !checked {
		d.problem("invoker-check-disabled",
			"TASK_AUTH=iam leaves the check of the callers to Cloud Run, which %s has disabled: anybody can call.", s.Name).
			fix("Enable it (--invoker-iam-check), or set TASK_AUTH=oidc with TASK_AUDIENCE and TASK_SERVICE_ACCOUNTS.")
	}
	if !d.read(s.callers) {
		return
	}

	for _, member := range s.Callers {
		if mode == "iam" && everybody(member) {
			d.problem("invoker-public",
				"TASK_AUTH=iam leaves the check of the callers to Cloud Run, and %s may invoke %s.", member, s.title).
				fix("Remove it (gcloud run services remove-iam-policy-binding --member=%s --role=roles/run.invoker).", member)
		}
	}
	if mode == "oidc" && checked && !slices.Contains(s.Callers, "allUsers") {
		d.problem("oidc-behind-iam",
			"TASK_AUTH=oidc: %s verifies tokens, but Cloud Run's check removes their signature: calls get 401.", s.title).
			fix("Set TASK_AUTH=iam without TASK_AUDIENCE and TASK_SERVICE_ACCOUNTS; " +
				"or, where the public may call, disable Cloud Run's check (--no-invoker-iam-check).")
	}
}

func everybody(member string) bool { return member == "allUsers" || member == "allAuthenticatedUsers" }
