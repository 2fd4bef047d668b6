package doctor

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBackoffDoublesThenGrowsByTheLastStep(t *testing.T) {
	// Cloud Tasks' own example: 10, 20, 40, 80, 160, 240, 300, 300.
	q := Queue{MinBackoff: 10 * time.Second, MaxBackoff: 300 * time.Second, Doublings: 3}
	want := []int64{10, 20, 40, 80, 160, 240, 300, 300}
	sum := int64(0)
	for n, pause := range want {
		sum += pause
		if got := seconds(q.waits(int64(n + 1))); got != sum {
			t.Errorf("%d pauses last %d s, want %d", n+1, got, sum)
		}
	}
	if got := q.waits(1 << 40); got <= 0 {
		t.Errorf("endless pauses last %v", got)
	}
	for _, q := range []Queue{{}, {MaxBackoff: time.Hour}, {MinBackoff: 1, MaxBackoff: 1<<63 - 1, Doublings: 1 << 40}, {MinBackoff: 1<<63 - 1, MaxBackoff: 1<<63 - 1}} {
		if got := q.waits(1 << 40); got < 0 || (got == 0) != (q.MinBackoff == 0) {
			t.Errorf("%+v: pauses last %v", q, got)
		}
	}
	if got := (Queue{MinBackoff: time.Second, MaxBackoff: time.Hour}).waits(3); got != 6*time.Second {
		t.Errorf("without doublings three pauses last %v, want 1 + 2 + 3 s", got)
	}
}

func TestWithoutCredentialsItIsSaidHowToGetThem(t *testing.T) {
	err := explain("projects/p", errors.New("google: could not find default credentials. See https://x"))
	if err == nil || err.Error() != "no credentials: gcloud auth application-default login" {
		t.Error(err)
	}
}

func TestNearNamesAreFoundAndFarOnesAreNot(t *testing.T) {
	known := slices.Sorted(maps.Keys(workerNames().known()))
	for name, want := range map[string]string{
		"LOCK_TLL": "LOCK_TTL", "TASK_QUEU": "TASK_QUEUE", "RUN_TIEMOUT": "RUN_TIMEOUT", "lock_ttl": "LOCK_TTL",
		"TASK_TARGET_URI": "TASK_TARGET_URL", "COLOUR": "", "PATH": "", "PORTS": "", "MY_OWN": "",
	} {
		if got := nearest(strings.ToUpper(name), known); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestPasswordsQueriesAndTokensAreCutOut(t *testing.T) {
	for text, want := range map[string]string{
		"at https://me:secret@x.example/run": "at https://…@x.example/run",
		`"https://x.example/a?key=secret" b`: `"https://x.example/a?…" b`,
		"Bearer ya29.a0secret-x_y":           "Bearer …",
		"token eyJhbGciOi.eyJpc3Mi.c2ln end": "token … end",
		"https://x.example/internal/sweep":   "https://x.example/internal/sweep",
	} {
		if got := scrub(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestAQueueIsReadFromFlagsOfGcloud(t *testing.T) {
	for name, tc := range map[string]struct {
		text, wrong string
		want        Queue
	}{
		"flags that say nothing": {text: "--location: l\n", want: func() Queue {
			q := defaultQueue()
			q.Location = "l"
			return q
		}()},
		"unlimited": {text: "--max-attempts: unlimited\n--max-retry-duration: unlimited\n", want: func() Queue {
			q := defaultQueue()
			q.MaxAttempts = -1
			return q
		}()},
		"what describes a queue": {text: "name: projects/p/locations/l/queues/q\nstate: RUNNING\n", wrong: "is no flags file of a queue"},
		"twice the same":         {text: "--max-attempts: 1\n--max-attempts: 2\n", wrong: "already set"},
		"a flag that is none":    {text: "--max-attempt: 3\n", wrong: `unknown field "--max-attempt"`},
		"a number that is none":  {text: "--max-attempts: many\n", wrong: `--max-attempts: "many" is not a number`},
		"a duration without 's'": {text: "--min-backoff: 30\n", wrong: `--min-backoff: "30" is not a duration`},
		"a list as a value":      {text: "--min-backoff: [30s]\n", wrong: "neither a text nor a number"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "queue")
			if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := queueFile(file)
			if tc.wrong == "" && (err != nil || got != tc.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, tc.want)
			}
			if tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong) || !strings.HasPrefix(err.Error(), file)) {
				t.Errorf("got %v, want %s", err, tc.wrong)
			}
		})
	}
}

func TestAFileMayExemptAllFieldsOfAGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "indexes")
	if err := os.WriteFile(file, []byte(`{"fieldOverrides": [{"collectionGroup": "analyses", "fieldPath": "*", "indexes": []},
		{"collectionGroup": "analyses", "fieldPath": "result", "indexes": [{"order": "ASCENDING"}]},
		{"collectionGroup": "analyses", "fieldPath": "input", "ttl": false}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := indexesFile(file)
	all.Group = "analyses"
	if err != nil || all.indexed("input") || !all.indexed("result") {
		t.Errorf("got %+v, %v, want result indexed alone", all, err)
	}
}

func TestAServiceWithSidecarsIsItsContainerWithAPort(t *testing.T) {
	const head = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: w}\n"
	for name, tc := range map[string]struct{ text, want, wrong string }{
		"one without a port":    {text: head + "spec: {template: {spec: {containers: [{image: a}]}}}", want: "a"},
		"the second has a port": {text: head + "spec: {template: {spec: {containers: [{image: a}, {image: b, ports: [{containerPort: 8080}]}]}}}", want: "b"},
		"none has a port":       {text: head + "spec: {template: {spec: {containers: [{image: a}, {image: b}]}}}", wrong: "none of 2 containers"},
		"none at all":           {text: head + "spec: {template: {spec: {containers: [null]}}}", wrong: "none of 0 containers"},
		"no template":           {text: head, wrong: "no template"},
		"no name":               {text: "apiVersion: serving.knative.dev/v1\nkind: Service\n", wrong: "no name"},
		"another kind":          {text: "apiVersion: v1\nkind: Service\n", wrong: "v1 Service is not a Service of serving.knative.dev/v1"},
		"a bad scale":           {text: head + "spec: {template: {metadata: {annotations: {autoscaling.knative.dev/maxScale: many}}, spec: {containers: [{}]}}}", wrong: `maxScale: "many"`},
		"a numeric namespace":   {text: strings.Replace(head, "name: w", "name: w, namespace: 123456789012", 1) + "spec: {template: {spec: {containers: [{image: w1}]}}}", want: "w1"},
		"a bad audience":        {text: strings.Replace(head, "name: w", "name: w, annotations: {run.googleapis.com/custom-audiences: x}", 1) + "spec: {template: {spec: {containers: [{}]}}}", wrong: "custom-audiences"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "service")
			if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := serviceFile(file)
			if tc.wrong == "" && (err != nil || got.Settings.Value.Image != tc.want || got.Settings.Value.Concurrency != 80 || got.Settings.Value.MaxInstances != 100) {
				t.Errorf("got %+v, %v, want the image %s and Cloud Run's defaults", got, err, tc.want)
			}
			if tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)) {
				t.Errorf("got %v, want %s", err, tc.wrong)
			}
		})
	}
}
