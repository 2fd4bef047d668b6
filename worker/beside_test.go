package worker_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

// A line of level DEBUG names the runs beside which a run begins, ten at most.
func TestRun_Beside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, log := emulatortest.Embedded(t), &emulatortest.Log{}
		g := open(t, b, func(o *worker.Options) {
			o.Log = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		h := g.MustRegister(worker.Kind{Run: runs(time.Minute)}).Handler()

		var runs sync.WaitGroup
		begins := func(id, want string) {
			t.Helper()
			set(t, collection(t, b, "analyses").Doc(id), map[string]any{"status": "QUEUED"})
			runs.Go(func() { post(t, h, "/internal/tasks/analysis", `{"analysis_id":"`+id+`"}`) })
			time.Sleep(time.Second)
			line := `"msg":"a run begins","analysis_id":"` + id + `","lock_token":1,` + want
			if !strings.Contains(log.String(), line) {
				t.Errorf("no line has %s: %s", line, log)
			}
		}
		begins("l", `"others":0,"beside":null`)
		begins("a", `"others":1,"beside":["l"]`)
		for n, id := range "bcdefghij" {
			begins(string(id), fmt.Sprintf(`"others":%d,"beside":["a"`, n+2))
		}
		begins("k", `"others":11,"beside":["a","b","c","d","e","f","g","h","i","j"]`) // without l
		runs.Wait()
		begins("later", `"others":0,"beside":null`)
		runs.Wait()
	})
}
