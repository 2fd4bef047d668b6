package doctor

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// service is one of the two services.
type service struct {
	Service
	title string
	parse func(lookup) error
	// own: it is another program of the user, which may have other variables and routes.
	own    bool
	probes []string // the routes for probes
}

// rules returns the rules that apply to either service.
func (s service) rules(settings, callers Part) []rule {
	return []rule{
		{"traffic", []Part{settings}, s.traffic},
		{"environment", []Part{settings}, s.refused},
		{"unknown-variable", []Part{settings}, s.unknownVariable},
		{"variable-twice", []Part{settings}, func() []Finding {
			return findIf(len(s.Twice) > 0, Problem,
				fmt.Sprintf("%s has variables that are set more than once: %s. Only one of the values is used.", s.Name, strings.Join(s.Twice, ", ")),
				"Keep one value of each.")
		}},
		{"probe-path", []Part{settings}, s.probePath},
		{"test-setting", []Part{settings}, s.testSetting},
		{"plain-secret", []Part{settings}, s.plainSecret},
		{"invoker-check-disabled", []Part{settings}, s.checkDisabled},
		{"invoker-public", []Part{settings, callers}, s.public},
		{"oidc-behind-iam", []Part{settings, callers}, s.signatureRemoved},
	}
}

// traffic finds a change of a setting that has no effect: a release sends the requests to one
// revision, and a change makes another.
func (s service) traffic() []Finding {
	severity := Problem
	if s.NewestShare > 0 { // a release is under way
		severity = Advice
	}
	return findIf(s.Serving != s.Newest, severity,
		fmt.Sprintf("%s was changed last in revision %s, which gets %d %% of the requests; most go to %s, whose settings are judged here.",
			s.Name, s.Newest, s.NewestShare, s.Serving),
		"If that was not intended, send them to the newest revision after its smoke test (docs/operations.md, Change a setting).")
}

// refused finds what the service refuses to start with: missing and malformed values,
// and figures that do not fit together, such as the lock's.
func (s service) refused() (found []Finding) {
	err := s.parse(s.lookup)
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		name, what, _ := strings.Cut(strings.TrimSpace(line), ": ")
		fix := setVariable(strings.ReplaceAll(name, ", ", "=VALUE,"), "VALUE")
		program := strings.HasPrefix(what, "belongs to ANALYZER=exec:") && strings.HasPrefix(s.Environment["ANALYZER"], "exec:") // see lookup
		if strings.HasPrefix(what, "belongs to ") {
			fix = fmt.Sprintf("Set what it belongs to, or remove it (--remove-env-vars=%s).", name)
		}
		found = append(found, findIf(s.Environment[name] != Secret && !program, Problem, // a secret is unknown, not wrong
			fmt.Sprintf("%s will not start: %s: %s.", s.title, name, what), fix)...)
	}
	return found
}

// unknownVariable finds variables that look like the service's own, by their first
// word, and that it does not read. Others, and those of ANALYZER_ENV, may be the analyzer's.
func (s service) unknownVariable() (found []Finding) {
	read, words := map[string]bool{}, map[string]bool{}
	_ = s.parse(func(name string) (string, bool) { // for the names: it asks for all, and refuses those of another mode
		read[name] = true
		if word, _, several := strings.Cut(name, "_"); several && word != "GOOGLE" && word != "OTEL" {
			words[word] = true
		}
		return s.lookup(name)
	})
	for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
		word, _, _ := strings.Cut(strings.ToUpper(name), "_")
		severity := Problem
		if s.own || slices.ContainsFunc(strings.Split(s.value("ANALYZER_ENV"), ","), func(p string) bool {
			passed, _ := path.Match(strings.TrimSpace(p), name)
			return passed
		}) {
			severity = Advice
		}
		found = append(found, findIf(words[word] && !read[name], severity,
			fmt.Sprintf("%s does not read the variable %s: its name may be misspelled.", s.title, name),
			fmt.Sprintf("Correct the name, or remove the variable (--remove-env-vars=%s) unless the analyzer reads it.", name))...)
	}
	return found
}

// probePath finds a probe that always fails, so that no instance starts, or each is restarted.
func (s service) probePath() []Finding {
	wrong := slices.DeleteFunc(slices.Clone(s.Probes), func(p string) bool { return s.own || slices.Contains(s.probes, p) })
	return findIf(len(wrong) > 0, Problem,
		fmt.Sprintf("A probe of %s asks for %s, which it does not serve: the probe fails, and Cloud Run ends the instance.", s.Name, strings.Join(wrong, " and ")),
		"Set the path of the startup probe to /health/ready, and that of the liveness probe to /health/live.")
}

// testSetting finds emulators and other signing keys in a deployed service.
func (s service) testSetting() (found []Finding) {
	for _, v := range []struct{ name, effect string }{
		{"FIRESTORE_EMULATOR_HOST", "uses an emulator and keeps nothing"},
		{"CLOUD_TASKS_EMULATOR_HOST", "uses an emulator and delivers nothing"},
		{"TASK_JWKS_URL", "trusts the keys of that URL, so its owner decides who may call"},
	} {
		found = append(found, findIf(s.value(v.name) != "", Problem,
			fmt.Sprintf("%s is for tests, and is set in a deployed service: %s %s.", v.name, s.title, v.effect),
			fmt.Sprintf("Remove it (--remove-env-vars=%s).", v.name))...)
	}
	return found
}

// plainSecret finds a secret that everybody can read who may view the service.
func (s service) plainSecret() []Finding {
	return findIf(s.value("SESSION_SECRET") != "", Problem,
		"SESSION_SECRET is in plain text among the service's settings: who may view them can make a session.",
		"Create a new one in Secret Manager and refer to it, in one command (--remove-env-vars=SESSION_SECRET --update-secrets=SESSION_SECRET=taskguard-session:latest).")
}

func (s service) checkDisabled() []Finding {
	return findIf(s.value("TASK_AUTH") == "iam" && !s.InvokerCheck, Problem,
		fmt.Sprintf("TASK_AUTH=iam leaves the check of the callers to Cloud Run, and on %s that check is disabled: anybody can call.", s.Name),
		"Enable it (--invoker-iam-check), or set TASK_AUTH=oidc with TASK_AUDIENCE and TASK_SERVICE_ACCOUNTS.")
}

func (s service) public() (found []Finding) {
	for _, member := range s.Callers {
		found = append(found, findIf(s.value("TASK_AUTH") == "iam" && everybody(member), Problem,
			fmt.Sprintf("TASK_AUTH=iam leaves the check of the callers to Cloud Run, and %s may invoke %s.", member, s.title),
			fmt.Sprintf("Remove it (gcloud run services remove-iam-policy-binding, --member=%s --role=roles/run.invoker).", member))...)
	}
	return found
}

func (s service) signatureRemoved() []Finding {
	behind := s.InvokerCheck && !slices.Contains(s.Callers, "allUsers")
	return findIf(s.value("TASK_AUTH") == "oidc" && behind, Problem,
		fmt.Sprintf("TASK_AUTH=oidc verifies tokens in %s, but Cloud Run's own check comes first and removes their signature: every call is answered 401.", s.title),
		"Set TASK_AUTH=iam without TASK_AUDIENCE and TASK_SERVICE_ACCOUNTS; or, where the public may call, disable Cloud Run's check (--no-invoker-iam-check).")
}

func everybody(member string) bool { return member == "allUsers" || member == "allAuthenticatedUsers" }
