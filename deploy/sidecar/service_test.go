package sidecar

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"
)

// read decodes what service.sh prints as gcloud does, refusing what the API does not know,
// and returns the service, the worker's container and the application's.
func read(t *testing.T) (s run.Service, worker, app *run.Container) {
	t.Helper()
	data, err := exec.CommandContext(t.Context(), "bash", "service.sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, &s, yaml.DisallowUnknownFields); err != nil {
		t.Fatal(err)
	}
	all := s.Spec.Template.Spec.Containers
	if len(all) != 2 || all[0].Name != "worker" || all[1].Name != "app" {
		t.Fatalf("%d containers, want worker and app", len(all))
	}
	return s, all[0], all[1]
}

func variables(c *run.Container) map[string]string {
	all := map[string]string{}
	for _, v := range c.Env {
		all[v.Name] = v.Value
	}
	return all
}

// The container with a port gets the requests, and it starts last.
func TestTheWorkerTakesTheRequestsAndCallsTheApplication(t *testing.T) {
	s, worker, app := read(t)
	port := variables(app)["APP_PORT"]
	probe := app.StartupProbe.HttpGet
	for what, pair := range map[string][2]string{
		"the analyzer":         {variables(worker)["ANALYZER"], "http://localhost:" + port + "/analyze"},
		"the probe":            {strconv.FormatInt(probe.Port, 10) + probe.Path, port + "/health"},
		"the slots":            {variables(app)["APP_SLOTS"], strconv.FormatInt(s.Spec.Template.Spec.ContainerConcurrency, 10)},
		"the order":            {s.Spec.Template.Metadata.Annotations["run.googleapis.com/container-dependencies"], `{"worker":["app"]}`},
		"the ports":            {strconv.Itoa(len(worker.Ports)) + strconv.Itoa(len(app.Ports)), "10"},
		"a busy one is killed": {strconv.FormatBool(app.LivenessProbe != nil), "false"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: got %q, want %q", what, pair[0], pair[1])
		}
	}
	program, err := os.ReadFile("app/app.py")
	for name := range variables(app) {
		if err != nil || !strings.Contains(string(program), `environ.get("`+name+`"`) {
			t.Errorf("app.py does not read %s, %v", name, err)
		}
	}
}
