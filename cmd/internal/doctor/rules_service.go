package doctor

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// service is one of the two services.
type service struct {
	Service
	title  string
	parse  func(lookup) error
	own    bool     // it is another program of the user, which may have other variables and routes
	probes []string // the routes for probes
}

// rules returns the rules that apply to either service.
func (s service) rules(settings, callers Part) []rule {
	alone, both := []Part{settings}, []Part{settings, callers}
	return []rule{
		{"traffic", alone, s.traffic},
		{"environment", alone, s.refused},
		{"unknown-variable", alone, s.unknownVariable},
		{"variable-twice", alone, s.variableTwice},
		{"probe-path", alone, s.probePath},
		{"test-setting", alone, s.testSetting},
		{"plain-secret", alone, s.plainSecret},
		{"invoker-check-disabled", alone, s.checkDisabled},
		{"invoker-public", both, s.public},
		{"oidc-behind-iam", both, s.signatureRemoved},
	}
}

// traffic finds a change of a setting that has no effect: a release sends the requests to one
// revision, and a change makes another.
func (s service) traffic() findings {
	severity := Problem
	if s.NewestShare > 0 { // a release is under way
		severity = Advice
	}
	return findIf(s.Serving != s.Newest, severity,
		"%s has its last change in %s, which gets %d %% of the requests; most go to %s, whose settings are checked.",
		s.Name, s.Newest, s.NewestShare, s.Serving).
		fix("Test the newest revision, and send them to it (docs/operations.md, Change a setting).")
}

// refused finds what the service refuses to start with: missing and malformed values,
// and figures that do not fit together, such as the lock's.
func (s service) refused() (found findings) {
	err := s.parse(s.lookup)
	if err == nil {
		return nil
	}

	program := strings.HasPrefix(s.Environment["ANALYZER"], "exec:") // see lookup
	for line := range strings.Lines(err.Error()) {
		name, what, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if s.Environment[name] == Secret || program && strings.HasPrefix(what, "belongs to ANALYZER=exec:") {
			continue // it is unknown, not wrong
		}

		one := findIf(true, Problem, "%s will not start: %s: %s.", s.title, name, what)
		if strings.HasPrefix(what, "belongs to ") {
			one.fix("Set what it belongs to, or remove it (--remove-env-vars=%s).", name)
		} else {
			one.fix(setVariable, strings.ReplaceAll(name, ", ", "=VALUE,"), "VALUE")
		}
		found = append(found, one...)
	}
	return found
}

// unknownVariable finds variables that look like the service's own, by their first
// word, and that it does not read. Others, and those of ANALYZER_ENV, may be the analyzer's.
func (s service) unknownVariable() (found findings) {
	read, words := map[string]bool{}, map[string]bool{}
	_ = s.parse(func(name string) (string, bool) { // for the names: it asks for all, and refuses those of another mode
		read[name] = true
		if word, _, several := strings.Cut(name, "_"); several && word != "GOOGLE" && word != "OTEL" {
			words[word] = true
		}
		return s.lookup(name)
	})

	passed := strings.Split(s.value("ANALYZER_ENV"), ",")
	for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
		severity := Problem
		if s.own || slices.ContainsFunc(passed, func(pattern string) bool {
			matches, _ := path.Match(strings.TrimSpace(pattern), name)
			return matches
		}) {
			severity = Advice
		}

		word, _, _ := strings.Cut(strings.ToUpper(name), "_")
		found = append(found, findIf(words[word] && !read[name], severity,
			"%s does not read the variable %s: its name may be misspelled.", s.title, name).
			fix("Correct the name, or remove it unless the analyzer reads it (--remove-env-vars=%s).", name)...)
	}
	return found
}

func (s service) variableTwice() findings {
	return findIf(len(s.Twice) > 0, Problem,
		"%s sets variables more than once: %s. Only one of the values is used.", s.Name, strings.Join(s.Twice, ", ")).
		fix("Keep one value of each.")
}

// probePath finds a probe that always fails, so that no instance starts, or each is restarted.
func (s service) probePath() findings {
	served := func(path string) bool { return s.own || slices.Contains(s.probes, path) }
	wrong := slices.DeleteFunc(slices.Clone(s.Probes), served)
	return findIf(len(wrong) > 0, Problem,
		"A probe of %s asks for %s, which it does not serve: the probe fails, and Cloud Run ends the instance.",
		s.Name, strings.Join(wrong, " and ")).
		fix("Set the path of the startup probe to /health/ready, and that of the liveness probe to /health/live.")
}

// testSetting finds emulators and other signing keys in a deployed service.
func (s service) testSetting() (found findings) {
	for _, v := range []struct{ name, effect string }{
		{"FIRESTORE_EMULATOR_HOST", "uses an emulator and keeps nothing"},
		{"CLOUD_TASKS_EMULATOR_HOST", "uses an emulator and delivers nothing"},
		{"TASK_JWKS_URL", "trusts the keys of that URL, so its owner decides who may call"},
	} {
		found = append(found, findIf(s.value(v.name) != "", Problem,
			"%s is for tests, and is set in a deployed service: %s %s.", v.name, s.title, v.effect).
			fix("Remove it (--remove-env-vars=%s).", v.name)...)
	}
	return found
}

// plainSecret finds a secret that everybody can read who may view the service.
func (s service) plainSecret() findings {
	return findIf(s.value("SESSION_SECRET") != "", Problem,
		"SESSION_SECRET is in plain text among the service's settings: who may view them can make a session.").
		fix("Create a new one in Secret Manager and refer to it, in one command " +
			"(--remove-env-vars=SESSION_SECRET --update-secrets=SESSION_SECRET=taskguard-session:latest).")
}

func (s service) checkDisabled() findings {
	return findIf(s.value("TASK_AUTH") == "iam" && !s.InvokerCheck, Problem,
		"TASK_AUTH=iam leaves the check of the callers to Cloud Run, which %s has disabled: anybody can call.", s.Name).
		fix("Enable it (--invoker-iam-check), or set TASK_AUTH=oidc with TASK_AUDIENCE and TASK_SERVICE_ACCOUNTS.")
}

func (s service) public() (found findings) {
	for _, member := range s.Callers {
		found = append(found, findIf(s.value("TASK_AUTH") == "iam" && everybody(member), Problem,
			"TASK_AUTH=iam leaves the check of the callers to Cloud Run, and %s may invoke %s.", member, s.title).
			fix("Remove it (gcloud run services remove-iam-policy-binding --member=%s --role=roles/run.invoker).",
				member)...)
	}
	return found
}

func (s service) signatureRemoved() findings {
	checked := s.InvokerCheck && !slices.Contains(s.Callers, "allUsers")
	return findIf(s.value("TASK_AUTH") == "oidc" && checked, Problem,
		"TASK_AUTH=oidc: %s verifies tokens, but Cloud Run's check removes their signature: calls get 401.", s.title).
		fix("Set TASK_AUTH=iam without TASK_AUDIENCE and TASK_SERVICE_ACCOUNTS; " +
			"or, where the public may call, disable Cloud Run's check (--no-invoker-iam-check).")
}

func everybody(member string) bool { return member == "allUsers" || member == "allAuthenticatedUsers" }
