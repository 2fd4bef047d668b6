package doctor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	run "google.golang.org/api/run/v1"
)

// Cloud Run's defaults.
const (
	defaultTimeout     = 300 * time.Second
	defaultConcurrency = 80
	defaultInstances   = 100
	defaultMemory      = 512 << 20
)

const apiVersion = "serving.knative.dev/v1"

// parseService reads what matters of a Knative service.
func parseService(s *run.Service) (Environment, Settings, error) {
	if s.ApiVersion != apiVersion || s.Kind != "Service" {
		return nil, Settings{}, fmt.Errorf("%s %s is not a Service of %s", s.ApiVersion, s.Kind, apiVersion)
	}
	if s.Metadata == nil || s.Metadata.Name == "" {
		return nil, Settings{}, errors.New("the service has no name")
	}
	if s.Spec == nil || s.Spec.Template == nil || s.Spec.Template.Spec == nil {
		return nil, Settings{}, errors.New("the service has no template")
	}
	spec := s.Spec.Template.Spec
	container, err := ingressContainer(spec.Containers)
	if err != nil {
		return nil, Settings{}, err
	}
	var revision map[string]string
	if s.Spec.Template.Metadata != nil {
		revision = s.Spec.Template.Metadata.Annotations
	}
	settings := Settings{
		Name: s.Metadata.Name, Region: s.Metadata.Labels["cloud.googleapis.com/location"], URLs: addresses(s),
		Timeout: defaultTimeout, Concurrency: defaultConcurrency,
		Account: spec.ServiceAccountName,
		Image:   container.Image, CPUAlways: revision["run.googleapis.com/cpu-throttling"] == "false",
		Port: 8080, Containers: len(spec.Containers), Revisions: revisions(s),
		InvokerCheck: s.Metadata.Annotations["run.googleapis.com/invoker-iam-disabled"] != "true",
	}
	if len(container.Ports) > 0 && container.Ports[0].ContainerPort > 0 {
		settings.Port = container.Ports[0].ContainerPort
	}
	settings.Startup, settings.Liveness = probed(container.StartupProbe), probed(container.LivenessProbe)
	if spec.TimeoutSeconds > 0 {
		settings.Timeout = time.Duration(spec.TimeoutSeconds) * time.Second
	}
	if spec.ContainerConcurrency > 0 {
		settings.Concurrency = spec.ContainerConcurrency
	}
	settings.Memory = memory(container.Resources)
	if settings.MaxInstances, err = instances(revision["autoscaling.knative.dev/maxScale"], s.Metadata.Annotations["run.googleapis.com/maxScale"]); err != nil {
		return nil, Settings{}, err
	}
	if list := s.Metadata.Annotations["run.googleapis.com/custom-audiences"]; list != "" {
		if err := json.Unmarshal([]byte(list), &settings.Audiences); err != nil {
			return nil, Settings{}, errors.New("run.googleapis.com/custom-audiences is no JSON list")
		}
	}
	return variables(container), settings, nil
}

// probed is the path that a probe asks for; empty: it asks by other means.
func probed(p *run.Probe) string {
	if p == nil || p.HttpGet == nil {
		return ""
	}
	return cmp.Or(p.HttpGet.Path, "/")
}

// ingressContainer is the one that takes requests: the only one, or the one with
// a port.
func ingressContainer(all []*run.Container) (*run.Container, error) {
	all = slices.DeleteFunc(slices.Clone(all), func(c *run.Container) bool { return c == nil })
	if len(all) == 1 {
		return all[0], nil
	}
	for _, c := range all {
		if len(c.Ports) > 0 {
			return c, nil
		}
	}
	return nil, fmt.Errorf("none of %d containers has a port", len(all))
}

func variables(c *run.Container) Environment {
	e := Environment{}
	for _, v := range c.Env {
		if v != nil {
			e[v.Name] = Variable{Value: v.Value, Secret: v.ValueFrom != nil}
		}
	}
	return e
}

var quantity = regexp.MustCompile(`^([0-9]{1,10})(k|Ki|Mi?|Gi?)?$`)

// memory returns a container's limit in bytes: Cloud Run's default where none is set,
// 0 for a quantity of another form.
func memory(r *run.ResourceRequirements) int64 {
	if r == nil || r.Limits["memory"] == "" {
		return defaultMemory
	}
	m := quantity.FindStringSubmatch(r.Limits["memory"])
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseInt(m[1], 10, 64) // of digits
	return n * map[string]int64{"": 1, "k": 1e3, "Ki": 1 << 10, "M": 1e6, "Mi": 1 << 20, "G": 1e9, "Gi": 1 << 30}[m[2]]
}

// instances is the lower of the revision's and the service's limit.
func instances(limits ...string) (int64, error) {
	most, said := int64(0), false
	for _, l := range limits {
		if l == "" {
			continue
		}
		n, err := strconv.ParseInt(l, 10, 32)
		if err != nil || n < 1 {
			return 0, fmt.Errorf("maxScale: %q is not a number of instances", l)
		}
		if !said || n < most {
			most, said = n, true
		}
	}
	if !said {
		return defaultInstances, nil
	}
	return most, nil
}

var projectNumber = regexp.MustCompile(`^[0-9]+$`)

// addresses are the service's own, the one that its name determines first.
func addresses(s *run.Service) (all []string) {
	region := s.Metadata.Labels["cloud.googleapis.com/location"]
	if region != "" && projectNumber.MatchString(s.Metadata.Namespace) {
		all = append(all, fmt.Sprintf("https://%s-%s.%s.run.app", s.Metadata.Name, s.Metadata.Namespace, region))
	}
	var listed []string
	if err := json.Unmarshal([]byte(s.Metadata.Annotations["run.googleapis.com/urls"]), &listed); err == nil {
		all = append(all, listed...)
	}
	if s.Status != nil && s.Status.Url != "" {
		all = append(all, s.Status.Url)
	}
	return slices.Compact(all)
}
