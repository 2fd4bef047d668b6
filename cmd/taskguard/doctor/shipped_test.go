package doctor_test

import (
	"context"
	"strings"
	"testing"

	"taskguard/cmd/taskguard/doctor"
)

const (
	deploy     = "../../../deploy/"
	workerURL  = "https://taskguard-worker-123456789012.europe-west1.run.app"
	doclockURL = "https://taskguard-doclock-123456789012.europe-west1.run.app"
	caller     = "taskguard-caller@my-project.iam.gserviceaccount.com"
	queueName  = "projects/my-project/locations/europe-west1/queues/analyses"
)

func nothing(string) (string, bool) { return "", false }

// files are the facts of the shipped files alone.
func files(t testing.TB) doctor.Facts {
	t.Helper()
	f, err := doctor.Read(context.Background(), doctor.Options{
		Service: deploy + "service.yaml", Doclock: deploy + "doclock.yaml", Queue: deploy + "queue.yaml",
		Indexes: deploy + "firestore.indexes.json", Lookup: nothing,
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// shipped are the facts of a deployment of the shipped files, all of them known.
func shipped(t testing.TB) doctor.Facts {
	t.Helper()
	f := files(t)
	f.Queue.Value.Name, f.Queue.Value.State = queueName, "RUNNING"
	for i := range f.Indexes.Value.Composite {
		f.Indexes.Value.Composite[i].State = "READY"
	}
	f.Worker.Callers = doctor.Part[[]string]{Value: []string{"serviceAccount:" + caller}, From: "test"}
	f.Doclock.Callers = doctor.Part[[]string]{From: "test"}
	f.Database = doctor.Part[doctor.Database]{Value: doctor.Database{Name: "projects/my-project/databases/(default)", Type: "FIRESTORE_NATIVE"}, From: "test"}
	const jobs = "projects/my-project/locations/europe-west1/jobs/"
	f.Jobs = doctor.Part[doctor.Jobs]{From: "Cloud Scheduler", Value: doctor.Jobs{Region: "europe-west1", List: []*doctor.Job{
		{Name: jobs + "taskguard-recover", State: "ENABLED", Method: "POST", URI: workerURL + "/internal/tasks/recover", Account: caller, Audience: workerURL},
		{Name: jobs + "taskguard-sweep", State: "ENABLED", Method: "POST", URI: doclockURL + "/internal/sweep", Account: caller, Audience: doclockURL},
		{Name: jobs + "another", State: "PAUSED", Method: "GET", URI: "https://example.com/"},
	}}}
	f.Worker.Settings.Value.Revisions = doctor.Revisions{
		Created: "taskguard-worker-00007", Ready: "taskguard-worker-00007", Pinned: true, Shares: map[string]int64{"taskguard-worker-00007": 100},
	}
	return f
}

func TestNothingIsWrongWithTheShippedFiles(t *testing.T) {
	found, unchecked := doctor.Check(files(t))
	if len(found) > 0 {
		t.Errorf("%+v", found)
	}
	for _, u := range unchecked {
		if u.Failed || u.Why == "" || len(u.Rules) == 0 {
			t.Errorf("%+v", u)
		}
	}
	if len(unchecked) == 0 {
		t.Error("files hold no IAM policy and no jobs, and nobody says so")
	}
}

func TestNothingIsWrongWithADeploymentOfTheShippedFiles(t *testing.T) {
	if found, unchecked := doctor.Check(shipped(t)); len(found)+len(unchecked) > 0 {
		t.Errorf("%+v\n%+v", found, unchecked)
	}
}

// The worker's shipped variables as a process's own environment.
func TestNothingIsWrongWithTheShippedEnvironment(t *testing.T) {
	env := files(t).Worker.Environment.Value
	f, err := doctor.Read(t.Context(), doctor.Options{Lookup: func(name string) (string, bool) {
		v, ok := env[name]
		return v.Value, ok
	}, Queue: deploy + "queue.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	found, unchecked := doctor.Check(f)
	if len(found) > 0 {
		t.Errorf("%+v", found)
	}
	for _, u := range unchecked {
		if u.Failed {
			t.Errorf("%+v", u)
		}
	}
}

func TestOfNothingNothingIsFoundAndAllIsSaidToBeUnchecked(t *testing.T) {
	found, unchecked := doctor.Check(doctor.Facts{})
	if len(found) > 0 {
		t.Errorf("%+v", found)
	}
	asked := map[string]bool{}
	for _, u := range unchecked {
		for _, r := range u.Rules {
			asked[r] = true
		}
	}
	for _, r := range doctor.Rules() {
		if !asked[r] {
			t.Errorf("%s is neither asked nor said to be unchecked", r)
		}
	}
}

func TestFindingsAreSentencesWithTheCommandThatMends(t *testing.T) {
	for _, c := range seeded {
		found, _ := doctor.Check(seed(t, c))
		for _, f := range found {
			if !strings.HasSuffix(f.Problem, ".") || len(f.Fix) < 10 || strings.ContainsAny(f.Problem+f.Fix, "\n") ||
				strings.Contains(f.Problem+f.Fix, "%!") {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
	}
}
