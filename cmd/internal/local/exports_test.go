package local

import (
	"strings"
	"testing"
)

func TestADeliveryGoesToTheNextWorkerThatIsNotFull(t *testing.T) {
	a, b := &process{number: 1}, &process{number: 2}
	for limit, want := range map[int]string{2: "2 1 2 1 1 2 1 ", 0: "2 1 2 1 2 1 2 "} {
		r, got := &router{limit: limit, workers: []*process{a, b}}, ""
		for i, n := range []int32{1, 1, 1, 1, 1, 0, 0} {
			if i == 4 {
				a.deliveries.Add(-1)
			}
			w, err := r.pick(n)
			if err != nil {
				t.Fatal(err)
			}
			got += strings.TrimPrefix(w.String(), "worker ") + " "
		}
		if got != want {
			t.Errorf("at most %d: %s, want %s", limit, got, want)
		}
		a.deliveries.Store(0)
		b.deliveries.Store(0)
	}
}

func TestMisspeltVariablesAreReported(t *testing.T) {
	var got strings.Builder
	warnOfMisspelt(&got, []string{
		"MAX_RUN=3=4", "LOCK_TLL=", "ANALYSER=x", "lock_ttl=5s", "DOCUMENT_LOCK_TTLS=x",
		"MAX_RUNS=MAX_RUN", "MAX_RUN_TIME=x", "PATH=x", "POST=x", "HOME=/", "LOCALE=x", "PUBSUB_EMULATOR_HOST=x", "SESSION_MANAGER=x",
	})
	want := strings.NewReplacer("-", "taskguard local: the variable ", ">", " is not read: did you mean ").
		Replace("-MAX_RUN>MAX_RUNS?\n-LOCK_TLL>LOCK_TTL?\n-ANALYSER>ANALYZER?\n-lock_ttl>LOCK_TTL?\n-DOCUMENT_LOCK_TTLS>DOCUMENT_LOCK_TTL?\n")
	if got.String() != want {
		t.Errorf("%s, want %s", got.String(), want)
	}
}

func TestExportsAreForAShell(t *testing.T) {
	text := exports(map[string]string{"A": "projects/p/q:1", "B": "it's $x"}, "go run ./cmd/taskguard")
	for _, want := range []string{"export A=projects/p/q:1\n", `export B='it'\''s $x'` + "\n", "  go run ./cmd/taskguard submit FILE… --wait\n", "requeue ID, delete ID, recover "} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
}
