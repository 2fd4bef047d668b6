package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
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
	whole := annotations["run.googleapis.com/maxScale"]
	revision := cmp.Or(template, &run.ObjectMeta{}).Annotations["autoscaling.knative.dev/maxScale"]
	n, err := strconv.ParseInt(cmp.Or(whole, revision, "100"), 10, 32)
	m, err2 := strconv.ParseInt(cmp.Or(revision, whole, "100"), 10, 32)
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
	n, _ := strconv.ParseInt(m[1], 10, 64) // of digits
	return n * map[string]int64{"M": 1e6, "Mi": 1 << 20, "G": 1e9, "Gi": 1 << 30}[m[2]]
}
