package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	run "google.golang.org/api/run/v1"

	"taskguard/internal/env"
)

// serviceFile reads a service as `gcloud run services replace` takes it, or as
// `gcloud run services describe --format=export` prints it.
func serviceFile(name string) (found Service, err error) {
	var s run.Service
	if err := decodeFile(name, "a Cloud Run service", &s); err != nil {
		return found, err
	}
	if found, err = parseService(&s, nil); err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return found, err
}

// serving returns the names of the revision that gets the most requests and of the newest, and
// the newest one's share in percent. They are empty if the service has no status, as in a file.
func serving(s *run.Service) (most, newest string, share int64) {
	if s.Status == nil || len(s.Status.Traffic) == 0 {
		return "", "", 0
	}
	shares := map[string]int64{} // a revision may have several entries, such as a tag's
	for _, t := range s.Status.Traffic {
		name := cmp.Or(t.RevisionName, s.Status.LatestReadyRevisionName)
		if shares[name] += t.Percent; most == "" || shares[name] > shares[most] {
			most = name
		}
	}
	newest = s.Status.LatestCreatedRevisionName
	return most, newest, shares[newest]
}

// parseService reads a Knative service: the settings of the revision that serves, or of the
// template if that is nil. What is unset has Cloud Run's default.
func parseService(s *run.Service, serves *run.Revision) (found Service, err error) {
	switch {
	case s.Kind != "Service":
		return found, fmt.Errorf("a %q is not a Service", s.Kind)
	case s.Metadata == nil || s.Spec == nil || s.Spec.Template == nil || s.Spec.Template.Spec == nil:
		return found, errors.New("the service has no metadata or no template")
	}

	spec, template, annotations := s.Spec.Template.Spec, s.Spec.Template.Metadata, s.Metadata.Annotations
	if serves != nil && serves.Spec != nil {
		spec, template = serves.Spec, serves.Metadata
	}
	container, err := ingressContainer(spec.Containers)
	if err != nil {
		return found, err
	}

	found = Service{
		Name:         s.Metadata.Name,
		Region:       s.Metadata.Labels["cloud.googleapis.com/location"],
		Number:       number.FindString(s.Metadata.Namespace),
		Image:        container.Image,
		Port:         "8080",
		Timeout:      time.Duration(cmp.Or(spec.TimeoutSeconds, 300)) * time.Second,
		Concurrency:  cmp.Or(spec.ContainerConcurrency, 80),
		Memory:       memory(container.Resources),
		URLs:         annotations["run.googleapis.com/urls"],
		Audiences:    annotations["run.googleapis.com/custom-audiences"],
		InvokerCheck: annotations["run.googleapis.com/invoker-iam-disabled"] != "true",
		Account:      spec.ServiceAccountName,
	}
	found.Serving, found.Newest, found.NewestShare = serving(s)
	found.readContainers(container, spec.Containers)

	// The service and the revision have a limit each: the lower one counts.
	service := annotations["run.googleapis.com/maxScale"]
	revision := cmp.Or(template, &run.ObjectMeta{}).Annotations["autoscaling.knative.dev/maxScale"]
	n, err := strconv.ParseInt(cmp.Or(service, revision, "100"), 10, 32)
	m, err2 := strconv.ParseInt(cmp.Or(revision, service, "100"), 10, 32)
	found.MaxInstances = min(n, m)
	return found, errors.Join(err, err2)
}

// readContainers reads the container that gets the requests, and the environments of all.
func (s *Service) readContainers(ingress *run.Container, all []*run.Container) {
	s.Environment = s.readVariables(ingress)
	for _, c := range all {
		if c != nil && c != ingress {
			s.Sidecars = append(s.Sidecars, s.readVariables(c))
			probe := cmp.Or(c.StartupProbe, c.LivenessProbe, &run.Probe{})
			http, tcp := cmp.Or(probe.HttpGet, &run.HTTPGetAction{}), cmp.Or(probe.TcpSocket, &run.TCPSocketAction{})
			if port := cmp.Or(http.Port, tcp.Port); port > 0 {
				s.Probed = append(s.Probed, strconv.FormatInt(port, 10))
			}
		}
	}

	for _, p := range ingress.Ports {
		s.Port = strconv.FormatInt(cmp.Or(p.ContainerPort, 8080), 10)
	}
}

// readVariables returns a container's variables, and notes variables that are set twice or have a
// secret's latest version.
func (s *Service) readVariables(c *run.Container) map[string]string {
	all := map[string]string{}
	for _, v := range c.Env {
		if v == nil { // a dash alone
			continue
		}
		if _, exists := all[v.Name]; exists {
			s.Twice = append(s.Twice, v.Name)
		}
		if all[v.Name] = v.Value; v.ValueFrom != nil {
			all[v.Name] = Secret
			if ref := v.ValueFrom.SecretKeyRef; ref != nil && ref.Key == "latest" {
				s.Latest = append(s.Latest, v.Name)
			}
		}
	}
	return all
}

// checkRole returns an error for a document lock that is named as the worker, and the other way round.
func (s *Service) checkRole(settings Part, source string) error {
	sets := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { _, set := s.Environment[name]; return set })
	}
	work := sets("ANALYZER", "ANALYSES_COLLECTION", "LOCK_TTL", "TASK_QUEUE")
	lock := sets("DOCUMENT_LOCK_TTL", "DOCUMENT_LOCKS_COLLECTION", "SESSION_AUTH", "SWEEP_INTERVAL")
	role, other := "the worker", "the document lock"
	if settings == DoclockSettings {
		work, lock, role, other = lock, work, other, role
	}
	if work || !lock {
		return nil
	}
	return fmt.Errorf("%s is %s, not %s: name the worker by --service, and the document lock by --doclock",
		source, other, role)
}

var (
	number = regexp.MustCompile(`^[0-9]+$`)
	// runHost has a service's name, and its project's number and region, or a hash.
	runHost = regexp.MustCompile(`^([a-z0-9-]+)-(?:([0-9]+)\.([a-z0-9-]+)|[a-z0-9]+-[a-z0-9]+\.a)\.run\.app$`)
)

// at reports whether Cloud Run gives the service this host. Names may begin alike: taskguard-worker
// is not taskguard-worker-staging.
func (s Service) at(host string) bool {
	m := runHost.FindStringSubmatch(host)
	listed := s.URLs == "" || strings.Contains(s.URLs, `"https://`+host+`"`)
	return len(m) > 0 && m[1] == s.Name && listed && !differ(m[2], s.Number) && !differ(m[3], s.Region)
}

// differ reports whether two values are known, and not the same.
func differ(a, b string) bool { return a != "" && b != "" && a != b }

// ingressContainer returns the container that gets the requests: the only one, or the
// one with a port.
func ingressContainer(all []*run.Container) (*run.Container, error) {
	for _, c := range all {
		if c != nil && (len(all) == 1 || len(c.Ports) > 0) {
			return c, nil
		}
	}
	return nil, fmt.Errorf("none of %d containers has a port", len(all))
}

var quantity = regexp.MustCompile(`^([0-9]{1,10})([MG]i?)$`)

// memory returns a container's limit in bytes; 0 for a quantity of another form.
func memory(r *run.ResourceRequirements) int64 {
	if r == nil || r.Limits["memory"] == "" {
		return 512 << 20
	}
	m := quantity.FindStringSubmatch(r.Limits["memory"])
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseInt(m[1], 10, 64) // it has only digits
	return n * map[string]int64{"M": 1e6, "Mi": 1 << 20, "G": 1e9, "Gi": 1 << 30}[m[2]]
}

// service is one of the two services.
type service struct {
	Service
	title             string
	settings, callers Part
	parse             func(lookup) error
	custom            bool // the user's own program, which may read other variables
}

// checkService applies the rules for either service.
func (d *diagnosis) checkService(s service) {
	if !d.hasRead(s.settings) {
		return
	}

	// A release sends the requests to one revision, and a change of a setting makes another. It is under
	// way if the newest has some.
	d.rule(adviceIf(s.NewestShare > 0), "traffic", s.Serving != s.Newest,
		"%s has its last change in %s, which gets %d %% of the requests; most go to %s, which is checked.\n"+
			"Test the newest revision, and send them to it (docs/operations.md, Change a setting).",
		s.Name, s.Newest, s.NewestShare, s.Serving)

	d.checkEnvironment(s)
	d.checkTemplate(s)
	d.checkCallers(s)
}

var (
	defaultAccount = regexp.MustCompile(`^$|-compute@developer\.gserviceaccount\.com$|@appspot\.gserviceaccount\.com$`)
	passwordName   = regexp.MustCompile(`(?i)(PASSWORD|PASSWD|PASSPHRASE|_PASS|_PWD)$`)
	secretName     = regexp.MustCompile(`(?i)(^|_)(SECRET|TOKEN|CREDENTIALS|PAT|KEY|(API|ACCESS|PRIVATE|SECRET)KEY)$`)
	// noSecretName matches the names of keys that are public, or of data.
	noSecretName = regexp.MustCompile(`(?i)((^|_)PUBLIC_|(^|_)(PUSHER_APP|PUBLISHABLE|SITE|ANON|` +
		`CONCURRENCY|CACHE|SORT|PARTITION|PRIMARY|ROUTING|OBJECT)_KEY$)`)
	// secretPart matches a URL's password or Sentry's key, a private key, a header, a flag, a parameter, or
	// what a known provider's keys begin with.
	secretPart = regexp.MustCompile(`(?i)://[^/\s:@]*:[^/\s@]+@|https?://[0-9a-z]{20,}@|-----BEGIN [A-Z ]*PRIVATE KEY|` +
		`\b([rs]k_live_|gh[oprsu]_|github_pat_|xox[a-z]-|(AKIA|ASIA)[0-9A-Z]{12})|hooks\.slack\.com/|` +
		`(\b(authorization|api[-_]?key|token|password|secret)|[?&]key)=[^/$\s]`)
	// noSecret matches what is empty, a path, a URL, a placeholder, a public key, or the name of a secret.
	noSecret = regexp.MustCompile(`^$|^[./<$\[]|://|^projects/|^pk_`)
)

// checkTemplate applies the rules about the account, the image, and the containers.
func (d *diagnosis) checkTemplate(s service) {
	d.rule(Problem, "default-account", defaultAccount.MatchString(s.Account),
		"%s has no service account for itself: Google's default one may do too much, or too little.\n"+
			"Set serviceAccountName (--service-account).", s.title)
	d.rule(Advice, "image-tag", s.Image != "" && !strings.Contains(s.Image, "@sha256:"),
		"The image of %s is %s: a tag can name another image at the next deployment than in the test.\n"+
			"Name it by its digest, IMAGE@sha256:….", s.title, s.Image)
	d.rule(Problem, "variable-twice", len(s.Twice) > 0,
		"%s has variables that are set twice, and only one value counts: %s.\n"+
			"Remove one of the two.", s.title, strings.Join(s.Twice, ", "))

	d.rule(Advice, "secret-latest", len(s.Latest) > 0,
		"%s reads the latest version of the secrets in %s: each new instance may read another one, untested.\n"+
			"Name its number (--update-secrets=NAME=SECRET:NUMBER).", s.title, strings.Join(s.Latest, ", "))

	for _, variables := range append([]map[string]string{s.Environment}, s.Sidecars...) {
		for _, name := range slices.Sorted(maps.Keys(variables)) {
			value := strings.TrimPrefix(variables[name], Secret)
			named := passwordName.MatchString(name) ||
				len(value) >= 8 && secretName.MatchString(name) && !noSecretName.MatchString(name)
			d.rule(Problem, "plain-secret", named && !noSecret.MatchString(value) || secretPart.MatchString(value),
				"%s has a secret in plain text in %s: who may view its settings can use it.\n"+
					"Create a new one in Secret Manager and refer to it, in one command "+
					"(--remove-env-vars=%[2]s --update-secrets=%[2]s=SECRET:NUMBER).", s.title, name)
		}
	}
}

// checkEnvironment finds the variables that keep the service from starting. It also finds variables
// that the service does not read, although it reads others with the same first word. Variables with
// another first word may be the analyzer's.
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
			name, problem, _ := strings.Cut(strings.TrimSpace(line), ": ")
			d.rule(Problem, "environment", s.Environment[name] != Secret, // which is unknown, not wrong
				"%s will not start: %s: %s.\n"+
					"Correct %[2]s (--update-env-vars), or remove what does not belong (--remove-env-vars).",
				s.title, name, problem)
		}
	}

	analyzerMayRead := s.custom || s.value("ANALYZER_ENV") != ""
	known := slices.Sorted(maps.Keys(read))
	runs := s.settings == WorkerSettings && !s.custom
	for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
		unread := runs && s.Environment[name] == Secret && !read[name]
		withheld, _ := d.config.Withheld([]string{name + "="})
		d.rule(Advice, "variable-withheld", unread && len(withheld) > 0,
			"%s does not read the secret %s, and the program of ANALYZER does not get it.\n"+
				"Name it in ANALYZER_ENV, or remove it (--remove-secrets=%[2]s).", s.title, name)
		word, _, _ := strings.Cut(strings.ToUpper(name), "_")
		meant := env.Misspelt(name, known)
		better := "the name"
		if meant != "" {
			better = "it to " + meant
		}
		d.rule(adviceIf(analyzerMayRead), "unknown-variable", !read[name] && (words[word] || meant != ""),
			"%s does not read the variable %s: its name may be misspelt.\n"+
				"Correct %s, or remove it unless the analyzer reads it (--remove-env-vars=%[2]s).",
			s.title, name, better)
	}
}

// checkCallers finds a service that lets anybody in, or nobody.
func (d *diagnosis) checkCallers(s service) {
	mode, checked := s.value("TASK_AUTH"), s.InvokerCheck
	better := "" // than a check that browsers do not pass
	if s.settings == DoclockSettings {
		better = "Set TASK_AUTH=oidc with TASK_AUDIENCE and TASK_SERVICE_ACCOUNTS. Only if no browser calls it: "
	}
	d.rule(Problem, "invoker-check-disabled", mode == "iam" && !checked,
		"TASK_AUTH=iam leaves the check of the callers to Cloud Run, which %s has disabled: anybody can call.\n"+
			"%sEnable it (--invoker-iam-check).", s.Name, better)
	if !d.hasRead(s.callers) {
		return
	}

	for _, member := range s.Callers {
		d.rule(Problem, "invoker-public", mode == "iam" && everybody(member),
			"TASK_AUTH=iam leaves the check of the callers to Cloud Run, and %s may invoke %s.\n"+
				"%sRemove it (gcloud run services remove-iam-policy-binding --member=%[1]s --role=roles/run.invoker).",
			member, s.title, better)
	}
	d.rule(Problem, "oidc-behind-iam", mode == "oidc" && checked && !slices.Contains(s.Callers, "allUsers"),
		"TASK_AUTH=oidc: %s verifies tokens, but Cloud Run's check removes their signature: calls get 401.\n"+
			"Set TASK_AUTH=iam without TASK_AUDIENCE and TASK_SERVICE_ACCOUNTS; "+
			"or, where the public may call, disable Cloud Run's check (--no-invoker-iam-check).", s.title)
}

func everybody(member string) bool { return member == "allUsers" || member == "allAuthenticatedUsers" }
