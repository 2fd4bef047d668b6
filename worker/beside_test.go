package worker_test

import (
	"context"
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

func TestALineOfLevelDebugNamesTheRunsBesideWhichARunBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, log := emulatortest.Embedded(t), &emulatortest.Log{}
		g := open(t, b, func(o *worker.Options) {
			o.Log = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		work := g.MustRegister(worker.Kind{Run: func(context.Context, worker.Job) (any, error) {
			time.Sleep(time.Minute)
			return "done", nil
		}})
		h, err := g.Routes(work)
		if err != nil {
			t.Fatal(err)
		}

		var runs sync.WaitGroup
		began := func(id string) string {
			t.Helper()
			set(t, collection(t, b, "analyses").Doc(id), map[string]any{"status": "QUEUED"})
			runs.Go(func() { post(t, h, "/internal/tasks/analysis", `{"analysis_id":"`+id+`"}`) })
			time.Sleep(time.Second)
			_, line, _ := strings.Cut(log.String(), `"msg":"a run begins","analysis_id":"`+id+`",`)
			line, _, _ = strings.Cut(line, "}")
			return line
		}
		const token = `"lock_token":1,`
		if got, want := began("first"), token+`"others":0,"beside":null`; got != want {
			t.Errorf("the first: %s, want %s", got, want)
		}
		if got, want := began("a"), token+`"others":1,"beside":["first"]`; got != want {
			t.Errorf("the second: %s, want %s", got, want)
		}
		for n := range 9 {
			began(fmt.Sprint("b", n))
		}
		want := token + `"others":11,"beside":["a","b0","b1","b2","b3","b4","b5","b6","b7","b8"]`
		if got := began("z"); got != want { // of eleven
			t.Errorf("the last: %s, want %s", got, want)
		}
		runs.Wait()
		if got, want := began("later"), token+`"others":0,"beside":null`; got != want {
			t.Errorf("after the others: %s, want %s", got, want)
		}
		runs.Wait()
	})
}
