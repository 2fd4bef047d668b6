package docs

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zclconf/go-cty/cty"
	"google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"
)

// What one sets up with gcloud and with Terraform is one deployment.
func TestTheModuleAndTheServiceFilesAgree(t *testing.T) {
	m := planned(t, with(everything, map[string]cty.Value{"otlp_endpoint": cty.NullVal(cty.String)}))
	for file, of := range map[string]cty.Value{
		"service.yaml":         m.of(t, "google_cloud_run_v2_service.worker"),
		"doclock.yaml":         m.of(t, "google_cloud_run_v2_service.doclock", 0),
		"sidecar/service.yaml": planned(t, beside).of(t, "google_cloud_run_v2_service.worker"),
	} {
		var theirs run.Service
		if err := yaml.UnmarshalStrict(readDeploy(t, file), &theirs); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		spec, tmpl := theirs.Spec.Template.Spec, templateOf(of)
		got := []string{
			text(t, tmpl.GetAttr("timeout")), text(t, tmpl.GetAttr("max_instance_request_concurrency")), text(t, tmpl.GetAttr("service_account")),
			text(t, tmpl.GetAttr("scaling").Index(cty.Zero).GetAttr("max_instance_count")), text(t, of.GetAttr("name")),
		}
		want := []string{
			fmt.Sprintf("%ds", spec.TimeoutSeconds), fmt.Sprint(spec.ContainerConcurrency), spec.ServiceAccountName,
			theirs.Spec.Template.Metadata.Annotations["autoscaling.knative.dev/maxScale"], theirs.Metadata.Name,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-%s +module:\n%s", file, diff)
		}
		containers := tmpl.GetAttr("containers").AsValueSlice()
		if len(containers) != len(spec.Containers) {
			t.Fatalf("%s has %d containers, the module %d", file, len(spec.Containers), len(containers))
		}
		for i, c := range spec.Containers {
			agreeOnEnvironment(t, file, c, environmentIn(t, containers[i]))
			if diff := cmp.Diff(ofFile(t, theirs, c), ofModule(t, containers[i])); diff != "" {
				t.Errorf("-%s +module:\n%s", file, diff)
			}
		}
	}
}

// agreeOnEnvironment takes what the file has beside the module for a mistake, unless
// there is a reason.
func agreeOnEnvironment(t *testing.T, file string, c *run.Container, env map[string]string) {
	t.Helper()
	for _, e := range c.Env {
		v, ok := env[e.Name]
		if ok && e.ValueFrom == nil && v != e.Value {
			t.Errorf("%s has %s=%q, the module %q", file, e.Name, e.Value, v)
		}
		if !ok && (c.Name == "app" || leftUnset[e.Name]+leftUnset[c.Name+" "+e.Name] == "") {
			t.Errorf("%s sets %s of %s, the module does not", file, e.Name, c.Name)
		}
		delete(env, e.Name)
	}
	if len(env) > 0 {
		t.Errorf("%s lacks %v", file, slices.Sorted(maps.Keys(env)))
	}
}

// container is what of one is compared, beside its environment. Its image is not: who
// deploys says it.
type container struct {
	name, port, cpu, memory string
	after                   []string
	starts, lives           probe
}

type probe struct{ path, port, period, timeout, failures string }

func ofFile(t *testing.T, s run.Service, c *run.Container) string {
	t.Helper()
	is := container{name: c.Name, cpu: c.Resources.Limits["cpu"], memory: c.Resources.Limits["memory"]}
	for _, p := range c.Ports {
		is.port += fmt.Sprint(p.Name, " ", p.ContainerPort)
	}
	after := map[string][]string{}
	if v := s.Spec.Template.Metadata.Annotations["run.googleapis.com/container-dependencies"]; v != "" {
		if err := json.Unmarshal([]byte(v), &after); err != nil {
			t.Fatal(err)
		}
	}
	is.after = after[c.Name]
	for to, p := range map[*probe]*run.Probe{&is.starts: c.StartupProbe, &is.lives: c.LivenessProbe} {
		*to = probe{p.HttpGet.Path, fmt.Sprint(p.HttpGet.Port), fmt.Sprint(p.PeriodSeconds), fmt.Sprint(p.TimeoutSeconds), fmt.Sprint(p.FailureThreshold)}
	}
	return is.String()
}

func ofModule(t *testing.T, v cty.Value) string {
	t.Helper()
	limits := v.GetAttr("resources").Index(cty.Zero).GetAttr("limits")
	is := container{name: text(t, v.GetAttr("name")), cpu: text(t, limits.GetAttr("cpu")), memory: text(t, limits.GetAttr("memory"))}
	if v.Type().HasAttribute("ports") {
		for _, p := range v.GetAttr("ports").Elements() {
			is.port += text(t, p.GetAttr("name")) + " " + text(t, p.GetAttr("container_port"))
		}
	}
	if v.Type().HasAttribute("depends_on") && !v.GetAttr("depends_on").IsNull() {
		for _, name := range v.GetAttr("depends_on").Elements() {
			is.after = append(is.after, text(t, name))
		}
	}
	for to, which := range map[*probe]string{&is.starts: "startup_probe", &is.lives: "liveness_probe"} {
		p := v.GetAttr(which).Index(cty.Zero)
		get := p.GetAttr("http_get").Index(cty.Zero)
		port := "0" // the container's
		if get.Type().HasAttribute("port") {
			port = text(t, get.GetAttr("port"))
		}
		*to = probe{text(t, get.GetAttr("path")), port, text(t, p.GetAttr("period_seconds")), text(t, p.GetAttr("timeout_seconds")), text(t, p.GetAttr("failure_threshold"))}
	}
	return is.String()
}

// String is a field a line.
func (c container) String() string {
	return strings.ReplaceAll(fmt.Sprintf("%#v", c), ", ", ",\n")
}
