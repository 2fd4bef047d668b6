package doctor

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// serviceRules are what holds for either service.
func serviceRules(n names) []rule {
	all := func(check func(*view, Service) []Finding, name string, needs ...part) rule {
		return rule{name, needs, func(v *view) []Finding { return check(v, n.of(v.Facts)) }}
	}
	return []rule{
		all(n.environmentRefused, "environment", n.environment),
		all(n.misspelt, "unknown-variable", n.environment),
		all(n.emulatorDeployed, "emulator-deployed", n.environment, n.settings),
		all(n.keysElsewhere, "keys-elsewhere", n.environment, n.settings),
		all(n.secretInPlainText, "plain-secret", n.environment, n.settings),
		all(n.checkDisabled, "invoker-check-disabled", n.environment, n.settings),
		all(n.open, "invoker-public", n.environment, n.callers),
		all(n.signatureStripped, "oidc-behind-iam", n.environment, n.settings, n.callers),
		all(n.defaultAccount, "default-account", n.settings),
		all(n.imageByTag, "image-tag", n.settings),
		all(n.imagePlaceholder, "image-placeholder", n.settings),
		all(n.notReady, "not-ready", n.settings),
		all(n.trafficElsewhere, "traffic-elsewhere", n.settings),
		all(n.probesNothing, "probe-path", n.settings),
		all(n.restartsForNothing, "liveness", n.settings),
	}
}

func (n names) environmentRefused(_ *view, s Service) (found []Finding) {
	e := s.Environment.Value
	err := n.refused(e.lookup)
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		name, what, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if e[name].Secret {
			continue // unknown, not wrong
		}
		found = append(found, Finding{Severity: Problem,
			Problem: fmt.Sprintf("%s will not start: %s: %s.", n.title, name, what),
			Fix:     s.correct(name)})
	}
	return found
}

func (n names) emulatorDeployed(_ *view, s Service) (found []Finding) {
	for _, name := range []string{"FIRESTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST"} {
		found = append(found, one(s.Environment.Value.value(name) != "", Problem,
			fmt.Sprintf("%s is set in a deployed service: %s would use an emulator and keep nothing.", name, n.title),
			s.remove(name))...)
	}
	return found
}

func (n names) keysElsewhere(_ *view, s Service) []Finding {
	return one(s.Environment.Value.value("TASK_JWKS_URL") != "", Problem,
		"TASK_JWKS_URL is set in a deployed service: whoever answers there decides who may call. It is for tests.",
		s.remove("TASK_JWKS_URL"))
}

// secretInPlainText finds what everybody who may look at the service can read.
func (n names) secretInPlainText(_ *view, s Service) []Finding {
	e := s.Environment.Value
	u, err := url.Parse(e.value("ANALYZER"))
	password := err == nil && u.User != nil
	return append(
		one(e.value("SESSION_SECRET") != "", Problem,
			"SESSION_SECRET is in plain text among the service's settings: whoever may look at them can make a session.",
			"Put a new one into Secret Manager; "+s.fromSecret("SESSION_SECRET", "taskguard-session")),
		one(password, Problem,
			"ANALYZER holds a user or a password in plain text.",
			"Put the URL into Secret Manager; "+s.fromSecret("ANALYZER", "taskguard-analyzer"))...)
}

func (n names) checkDisabled(_ *view, s Service) []Finding {
	return one(mode(s) == "iam" && !s.Settings.Value.InvokerCheck, Problem,
		fmt.Sprintf("TASK_AUTH=iam leaves the check of who calls to Cloud Run, and on %s that check is disabled: anybody can call.", s.Settings.Value.Name),
		s.mend("No run.googleapis.com/invoker-iam-disabled", "--invoker-iam-check")+", or TASK_AUTH=oidc with TASK_AUDIENCE and TASK_SERVICE_ACCOUNTS.")
}

func (n names) open(_ *view, s Service) (found []Finding) {
	for _, m := range s.Callers.Value {
		found = append(found, one(mode(s) == "iam" && everybody(m), Problem,
			fmt.Sprintf("TASK_AUTH=iam leaves the check of who calls to Cloud Run, and %s may invoke %s.", m, n.title),
			s.Settings.Value.gcloud("remove-iam-policy-binding", "--member="+m+" --role=roles/run.invoker"))...)
	}
	return found
}

func everybody(member string) bool { return member == "allUsers" || member == "allAuthenticatedUsers" }

// mayCall reports whether an account may be one of the members; who is in a group
// is unknown.
func mayCall(account string, members []string) bool {
	return slices.ContainsFunc(members, func(m string) bool {
		kind, _, _ := strings.Cut(m, ":")
		return m == "serviceAccount:"+account || everybody(m) || slices.Contains([]string{"group", "domain", "principalSet"}, kind)
	})
}

// inherited is who else may let somebody in: policies that are not read.
const inherited = "unless the project, a folder or the organisation lets it"

func (n names) signatureStripped(_ *view, s Service) []Finding {
	behind := s.Settings.Value.InvokerCheck && !slices.Contains(s.Callers.Value, "allUsers")
	return one(mode(s) == "oidc" && behind, Problem,
		fmt.Sprintf("TASK_AUTH=oidc verifies tokens in %s, but Cloud Run's own check is in front, which removes their signature: every call is answered 401.", n.title),
		"TASK_AUTH=iam without TASK_AUDIENCE and TASK_SERVICE_ACCOUNTS; or, where the public may call, "+s.mend(`run.googleapis.com/invoker-iam-disabled: "true"`, "--no-invoker-iam-check"))
}

func (n names) defaultAccount(_ *view, s Service) []Finding {
	account := s.Settings.Value.Account
	return one(account == "" || strings.HasSuffix(account, "-compute@developer.gserviceaccount.com"), Advice,
		fmt.Sprintf("%s runs as the project's default account, which may do more than it needs.", n.title),
		"Give it one of its own, as deploy/README.md does: "+s.mend("serviceAccountName: ACCOUNT", "--service-account=ACCOUNT"))
}

func (n names) imageByTag(_ *view, s Service) []Finding {
	return one(!strings.Contains(s.Settings.Value.Image, "@sha256:"), Advice,
		fmt.Sprintf("The image of %s is named by a tag, which may name another one tomorrow: %q.", n.title, s.Settings.Value.Image),
		s.mend("image: IMAGE@sha256:DIGEST", "--image=IMAGE@sha256:DIGEST")+", as `gcloud artifacts docker images describe` prints it.")
}

// imagePlaceholder finds the digest of zeros where the rest of the shipped name has
// been replaced.
func (n names) imagePlaceholder(_ *view, s Service) []Finding {
	image := s.Settings.Value.Image
	return one(strings.HasSuffix(image, "@sha256:"+strings.Repeat("0", 64)) && !strings.Contains(image, "/my-project/"), Problem,
		fmt.Sprintf("The image of %s is named by a digest of zeros, which stands for yours: there is no such image.", n.title),
		s.mend("image: IMAGE@sha256:DIGEST", "--image=IMAGE@sha256:DIGEST")+", as ko prints it.")
}

// probesNothing finds a probe that is answered 404; doclock has a page at /.
func (n names) probesNothing(_ *view, s Service) (found []Finding) {
	set := s.Settings.Value
	for _, p := range []struct{ kind, path, want string }{{"startup", set.Startup, "/health/ready"}, {"liveness", set.Liveness, "/health/live"}} {
		served := slices.Contains([]string{"", "/health/ready", "/health/live"}, p.path) || p.path == "/" && n.environment == doclockEnvironment
		found = append(found, one(!served, Problem,
			fmt.Sprintf("The %s probe of %s asks %s, which is answered 404: Cloud Run takes each instance for a broken one.", p.kind, n.title, p.path),
			s.mend(p.kind+"Probe: {httpGet: {path: "+p.want+"}}", "--"+p.kind+"-probe=httpGet.path="+p.want))...)
	}
	return found
}

func (n names) restartsForNothing(_ *view, s Service) []Finding {
	return one(s.Settings.Value.Liveness == "/health/ready", Problem,
		fmt.Sprintf("The liveness probe of %s asks /health/ready, which fails when Firestore does: each instance is restarted, and what it works on is lost.", n.title),
		s.mend("livenessProbe: {httpGet: {path: /health/live}}", "--liveness-probe=httpGet.path=/health/live"))
}

func mode(s Service) string { return s.Environment.Value.value("TASK_AUTH") }
