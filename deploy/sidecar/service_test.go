package sidecar

import (
	"encoding/json"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"

	"taskguard/internal/workerservice"
)

const dependencies = "run.googleapis.com/container-dependencies"

// read decodes a service as gcloud does, refusing what the API does not know.
func read(t *testing.T, path string) (s run.Service) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, &s, yaml.DisallowUnknownFields); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return s
}

// container returns the container with this name.
func container(t *testing.T, s run.Service, name string) *run.Container {
	t.Helper()
	i := slices.IndexFunc(s.Spec.Template.Spec.Containers, func(c *run.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no container %s", name)
	}
	return s.Spec.Template.Spec.Containers[i]
}

func variables(c *run.Container) map[string]string {
	all := map[string]string{}
	for _, v := range c.Env {
		all[v.Name] = v.Value
	}
	return all
}

func TestTheWorkersVariablesAreValidAndNameTheApplication(t *testing.T) {
	s := read(t, "service.yaml")
	environment := variables(container(t, s, "worker"))
	cfg, err := workerservice.ParseConfig(func(name string) (string, bool) { v, ok := environment[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(cfg.AnalyzerSpec)
	if err != nil || u.Hostname() != "localhost" || u.Path != "/analyze" {
		t.Errorf("ANALYZER is %s, %v", cfg.AnalyzerSpec, err)
	}
	app := container(t, s, "app")
	if got := variables(app)["APP_PORT"]; got != u.Port() {
		t.Errorf("the application listens on %s, ANALYZER calls %s", got, u.Port())
	}
	probe := app.StartupProbe
	if probe == nil || probe.HttpGet == nil || strconv.FormatInt(probe.HttpGet.Port, 10) != u.Port() || probe.HttpGet.Path != "/health" {
		t.Errorf("%+v does not probe the application", probe)
	}
	if app.LivenessProbe != nil {
		t.Error("a busy application would be killed with all of its analyses")
	}
	if got, want := variables(app)["APP_SLOTS"], strconv.FormatInt(s.Spec.Template.Spec.ContainerConcurrency, 10); got != want {
		t.Errorf("the application has %s slots for %s deliveries", got, want)
	}
}

func TestOnlyTheWorkerTakesRequestsAndItStartsLast(t *testing.T) {
	s := read(t, "service.yaml")
	if n := len(s.Spec.Template.Spec.Containers); n != 2 {
		t.Fatalf("%d containers, want 2", n)
	}
	if w, a := container(t, s, "worker"), container(t, s, "app"); len(w.Ports) != 1 || len(a.Ports) != 0 {
		t.Errorf("%d ports of the worker, %d of the application, want 1 and 0: the container with one is the ingress", len(w.Ports), len(a.Ports))
	}
	var after map[string][]string
	if err := json.Unmarshal([]byte(s.Spec.Template.Metadata.Annotations[dependencies]), &after); err != nil {
		t.Fatal(err)
	}
	if want := map[string][]string{"worker": {"app"}}; !reflect.DeepEqual(after, want) {
		t.Errorf("the order of the start is %v, want %v", after, want)
	}
}

// The sidecar changes nothing of the worker's service.
func TestTheWorkersContainerIsThatOfTheServiceWithoutASidecar(t *testing.T) {
	sidecar, alone := read(t, "service.yaml"), read(t, "../service.yaml")
	for _, v := range container(t, sidecar, "worker").Env {
		if v.Name == "ANALYZER" {
			v.Value = variables(container(t, alone, "worker"))["ANALYZER"]
		}
	}
	delete(sidecar.Spec.Template.Metadata.Annotations, dependencies)
	sidecar.Spec.Template.Spec.Containers = []*run.Container{container(t, sidecar, "worker")}
	got, want := text(t, sidecar), text(t, alone)
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func text(t *testing.T, s run.Service) string {
	t.Helper()
	data, err := yaml.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTheApplicationReadsEachVariableThatIsSetAndNoOther(t *testing.T) {
	reads, set := map[string]bool{}, map[string]bool{"APP_SECONDS": true} // simulates work
	for _, file := range []struct {
		path, variable string
		into           map[string]bool
	}{{"app/app.py", `environ\.get\("(\w+)"`, reads}, {"app/Dockerfile", `ENV (\w+)=`, set}} {
		data, err := os.ReadFile(file.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(file.variable).FindAllSubmatch(data, -1) {
			file.into[string(found[1])] = true
		}
	}
	for name := range variables(container(t, read(t, "service.yaml"), "app")) {
		set[name] = true
	}
	if !reflect.DeepEqual(reads, set) {
		t.Errorf("app.py reads %v, but %v are set", reads, set)
	}
}
