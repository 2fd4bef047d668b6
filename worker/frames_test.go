package worker_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

// ownFrames returns the functions of this module that lead to its caller, the first last. Tests do not
// count.
func ownFrames() (own []string) {
	callers := make([]uintptr, 200)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if strings.HasPrefix(f.Function, "taskguard/") && !strings.HasSuffix(f.File, "_test.go") {
			own = append(own, strings.TrimPrefix(f.Function, "taskguard/"))
		}
	}
	slices.Reverse(own)
	return own
}

// The way from the request to the store is short enough to be read from top to bottom. It changes its
// goroutine nowhere.
func TestFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		var commits [][]string
		conn := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any,
			c *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption,
		) error {
			if strings.HasSuffix(method, "/Commit") {
				commits = append(commits, ownFrames())
			}
			return invoke(ctx, method, request, reply, c, o...)
		})
		g := open(t, b, func(o *worker.Options) { o.FirestoreOptions = b.Client(t, conn) })

		var run []string
		work := g.MustRegister(jobs(worker.Typed(func(context.Context, any, worker.Job) (string, error) {
			run = ownFrames()
			return "done", nil
		})))
		set(t, collection(t, b, "jobs").Doc("1"), pending)
		post(t, work.Handler(), "/tasks/job", `{"job_id":"1"}`)
		if len(commits) != 2 {
			t.Fatalf("%d commits, want an acquisition and a finish", len(commits))
		}

		check := func(name string, frames []string, limit int) {
			t.Logf("%s, %d frames:\n  %s", name, len(frames), strings.Join(frames, "\n  "))
			if n := len(frames); n == 0 || n > limit {
				t.Errorf("%s: %d frames, want at most %d", name, n, limit)
			}
		}
		check("acquisition", commits[0], 10)
		check("run", run, 12)
		check("finish", commits[1], 12)
	})
}
