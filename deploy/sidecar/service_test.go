package sidecar

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"

	"taskguard/internal/testing/must"
)

// read decodes what service.sh prints as gcloud does, refusing what the API does not know,
// and returns the service, the worker's container and the application's.
func read(t *testing.T) (s run.Service, worker, app *run.Container) {
	t.Helper()
	data, err := exec.CommandContext(t.Context(), "bash", "service.sh").Output()
	must.OK(t, err)
	must.OK(t, yaml.UnmarshalStrict(data, &s, yaml.DisallowUnknownFields))
	all := s.Spec.Template.Spec.Containers
	var names []string
	for i := range all {
		names = append(names, all[i].Name)
	}
	if !slices.Equal(names, []string{"worker", "app"}) {
		t.Fatalf("containers %v, want worker and app", names)
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
func TestService(t *testing.T) {
	s, worker, app := read(t)
	port := variables(app)["APP_PORT"]
	probe := app.StartupProbe.HttpGet
	template := s.Spec.Template
	got := []any{
		variables(worker)["ANALYZER"], fmt.Sprint(probe.Port) + probe.Path, variables(app)["APP_SLOTS"],
		template.Metadata.Annotations["run.googleapis.com/container-dependencies"],
		len(worker.Ports), len(app.Ports), app.LivenessProbe != nil, // which would kill a busy one
	}
	want := []any{
		"http://localhost:" + port + "/analyze", port + "/health", fmt.Sprint(template.Spec.ContainerConcurrency),
		`{"worker":["app"]}`, 1, 0, false,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	program, err := os.ReadFile("app/app.py")
	for name := range variables(app) {
		if err != nil || !strings.Contains(string(program), `environ.get("`+name+`"`) {
			t.Errorf("app.py does not read %s, %v", name, err)
		}
	}
}
