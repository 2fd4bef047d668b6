package local

import (
	"strings"
	"testing"
)

func TestADeliveryGoesToTheNextWorkerThatIsNotFull(t *testing.T) {
	a, b := &process{number: 1}, &process{number: 2}
	for most, want := range map[int]string{2: "2 1 2 1 1 2 1 ", 0: "2 1 2 1 2 1 2 "} {
		r, got := &router{most: most, workers: []*process{a, b}}, ""
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
			t.Errorf("at most %d: %s, want %s", most, got, want)
		}
		a.deliveries.Store(0)
		b.deliveries.Store(0)
	}
}

func TestMisspeltVariablesAreReported(t *testing.T) {
	for name, want := range map[string]string{
		"MAX_RUN": "MAX_RUNS", "LOCK_TLL": "LOCK_TTL", "ANALYSER": "ANALYZER", "lock_ttl": "LOCK_TTL", "RETRYMIN": "RETRY_MIN", "DOCUMENT_LOCK_TTLS": "DOCUMENT_LOCK_TTL",
		"MAX_RUNS": "", "MAX_RUN_TIME": "", "PATH": "", "POST": "", "HOME": "", "LOCALE": "", "PUBSUB_EMULATOR_HOST": "", "SESSION_MANAGER": "",
	} {
		var got strings.Builder
		warnOfMisspelt(&got, []string{"HOME=/", name + "=3=4"})
		if want != "" {
			want = "taskguard local: the variable " + name + " is not read: did you mean " + want + "?\n"
		}
		if got.String() != want {
			t.Errorf("%s: %q, want %q", name, got.String(), want)
		}
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
