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
		Environment:  environment(container),
		Timeout:      time.Duration(cmp.Or(spec.TimeoutSeconds, 300)) * time.Second,
		Concurrency:  cmp.Or(spec.ContainerConcurrency, 80),
		Memory:       memory(container.Resources),
		URLs:         annotations["run.googleapis.com/urls"],
		InvokerCheck: annotations["run.googleapis.com/invoker-iam-disabled"] != "true",
		Account:      spec.ServiceAccountName,
	}
	found.Serving, found.Newest, found.NewestShare = serving(s)

	// The service and the revision have a limit each: the lower one counts.
	service := annotations["run.googleapis.com/maxScale"]
	revision := cmp.Or(template, &run.ObjectMeta{}).Annotations["autoscaling.knative.dev/maxScale"]
	n, err := strconv.ParseInt(cmp.Or(service, revision, "100"), 10, 32)
	m, err2 := strconv.ParseInt(cmp.Or(revision, service, "100"), 10, 32)
	found.MaxInstances = min(n, m)
	return found, errors.Join(err, err2)
}

// environment returns a container's variables.
func environment(c *run.Container) map[string]string {
	all := map[string]string{}
	for _, v := range c.Env {
		switch {
		case v == nil: // a dash alone
		case v.ValueFrom != nil:
			all[v.Name] = Secret
		default:
			all[v.Name] = v.Value
		}
	}
	return all
}

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

// checkEnvironment finds the variables that keep the service from starting. It also finds variables
// that the service does not read, although their first word is one of its own. Variables with
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
			if s.Environment[name] == Secret {
				continue // it is unknown, not wrong
			}
			d.problem("environment", "%s will not start: %s: %s.", s.title, name, problem).
				fix("Correct %s (--update-env-vars), or remove what does not belong (--remove-env-vars).", name)
		}
	}

	severity := Problem
	if s.custom || s.value("ANALYZER_ENV") != "" { // the analyzer may read it
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
	if !d.hasRead(s.callers) {
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
