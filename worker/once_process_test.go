package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// With this variable set, the test binary serves one delivery or order, and kills itself at a commit
// or an act: "HOST PROJECT POINT ANALYZER", or "HOST PROJECT POINT http:LEDGER" for an order.
const crashVariable = "ONCE_TEST_CRASH"

// kill is kill -9 of this process.
func kill() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// serveCrash serves the delivery. The points are numbers of commits, from 1, with "before" or
// "after", and the act's.
func serveCrash(setting string) error {
	words := strings.SplitN(setting, " ", 4)
	host, project, point, spec := words[0], words[1], words[2], words[3]
	commits := 0
	at := func(now string) {
		if now == point {
			kill()
		}
	}
	conn, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if !strings.HasSuffix(m, "/Commit") {
				return invoke(ctx, m, req, reply, cc, opts...)
			}
			commits++ // one after another
			n := strconv.Itoa(commits)
			at("before-" + n)
			defer at("after-" + n)
			return invoke(ctx, m, req, reply, cc, opts...)
		}))
	if err != nil {
		return err
	}
	g, err := worker.Open(context.Background(), worker.Options{
		Project: project, Auth: worker.CheckedByProxy(), FirestoreOptions: []option.ClientOption{option.WithGRPCConn(conn)},
	})
	if err != nil {
		return err
	}
	if ledger, ok := strings.CutPrefix(spec, "http:"); ok {
		orders(g, at).ServeHTTP(httptest.NewRecorder(), newOrder(context.Background(), "a", fmt.Sprintf(`{"ledger":%q}`, ledger)))
		return nil
	}
	request := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/tasks/job", strings.NewReader(`{"job_id":"1"}`))
	g.Handler(jobs(charging(spec, at))).ServeHTTP(httptest.NewRecorder(), request)
	return nil
}

// orders returns a handler that charges once for an Idempotency-Key.
func orders(g *worker.Guard, at func(point string)) http.Handler {
	charge := charging("keys", at)
	return g.Idempotent(worker.IdempotentOptions{Scope: account})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		job, _ := worker.JobFromContext(r.Context())
		var err error
		if job.Input, err = io.ReadAll(r.Body); err != nil {
			panic(err)
		}
		charged, err := charge(r.Context(), job)
		_, _ = fmt.Fprint(w, charged, err)
	}))
}

// crashable returns a Firestore, and a function that serves a delivery or an order in a process that
// is killed at the point. Its lock has expired when the function returns.
func crashable(t *testing.T) (b *emulatortest.Backend, crash func(point, spec string) (out []byte)) {
	t.Helper()
	var clock atomic.Int64
	b = emulatortest.Embedded(t)
	b.Server = firestore.NewServer(firestore.Options{Now: func() time.Time { return time.Now().Add(time.Duration(clock.Load())) }})
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return b, func(point, spec string) []byte {
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Env = append(os.Environ(), crashVariable+"="+strings.Join([]string{b.Listen(t), b.Project, point, spec}, " "))
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 0 && point == "never" || code != -1 && point != "never" {
			t.Fatalf("%v\n%s", err, out)
		}
		clock.Add(int64(time.Hour))
		return out
	}
}

// chargesOf returns the number of lines of a ledger.
func chargesOf(ledger string) int {
	text, _ := os.ReadFile(ledger) // missing: none
	return bytes.Count(text, []byte("4200\n"))
}

// charging returns an analyzer that charges once: a program, or a function with or without keys,
// which tells at of the act. A charge is a line of the ledger.
func charging(spec string, at func(point string)) func(context.Context, worker.Job) (any, error) {
	if strings.HasPrefix(spec, "exec:") {
		a, err := orchestrator.New(spec, orchestrator.Options{})
		if err != nil {
			panic(err)
		}
		return a.Analyze
	}
	return func(ctx context.Context, job worker.Job) (any, error) {
		ledger := strings.Split(string(job.Input), `"`)[3] // {"ledger":FILE}
		find := func(context.Context) (int, bool, error) {
			text, err := os.ReadFile(ledger)
			if errors.Is(err, os.ErrNotExist) {
				err = nil
			}
			return 4200, bytes.Contains(text, []byte(job.Key("charge"))), err
		}
		act := func(ctx context.Context) (int, error) {
			at("before-act")
			defer at("after-act")
			if cents, charged, err := find(ctx); spec == "keys" && (charged || err != nil) {
				return cents, err
			}
			f, err := os.OpenFile(ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return 0, err
			}
			_, err = fmt.Fprintln(f, job.Key("charge"), 4200)
			return 4200, errors.Join(err, f.Close())
		}
		var found []worker.Finder[int]
		if spec == "keys" {
			found = append(found, worker.Find(find))
		}
		cents, err := worker.Once(ctx, job, "charge", act, found...)
		return map[string]int{"charged": cents}, err
	}
}

// A worker is killed at each commit and at the act of an analysis that charges once. The delivery
// is repeated until the end, and an operator who reads the ledger answers an uncertain act. An
// attempt commits four times: the lock, the marker, the result of the act, and the end.
func TestKill9AtEachStepOfAnAct(t *testing.T) {
	python := "exec:" + examplestest.Find(t, "PYTHON", "python3")[0] + " ../docs/examples/python/charge.py"
	// what the operator answers if nobody else can
	points := map[string]string{
		"before-1": "", "after-1": "", "before-2": "", "after-2": "not done", "before-act": "not done", "after-act": "done",
		"before-3": "done", "after-3": "", "before-4": "", "after-4": "", "never": "",
	}
	for _, spec := range []string{"no-keys", "keys", python} {
		for point, answer := range points {
			if spec == "keys" {
				answer = ""
			} else if spec == python && strings.HasSuffix(point, "-act") { // between the second commit and the third
				continue
			}
			t.Run(strings.Fields(spec)[0]+" "+point, func(t *testing.T) {
				t.Parallel()
				b, crash := crashable(t)
				ledger := t.TempDir() + "/ledger"
				doc := collection(t, b, "jobs").Doc("1")
				payload := map[string]any{"ledger": ledger}
				if spec == python {
					payload["cents"] = 4200
				}
				set(t, doc, map[string]any{"state": "PENDING", "payload": payload})

				out := crash(point, spec)
				g := open(t, b, nil)
				kind := jobs(charging(spec, func(string) {}))
				h := g.Handler(kind)
				operator, err := g.Operator(kind)
				if err != nil {
					t.Fatal(err)
				}
				answered := ""
				for range 2 {
					post(t, h, "/tasks/job", `{"job_id":"1"}`)
					d, err := operator.Analyses.Get(t.Context(), "1")
					if err != nil {
						t.Fatal(err)
					}
					if d.Status != analysislock.Failed || d.Error.Code != analysislock.EffectUncertain {
						continue
					}
					reply := analysislock.Answer{Done: chargesOf(ledger) > 0}
					if answered += "not done"; reply.Done {
						answered, reply.Result = "done", map[string]any{"charged": int64(4200)}
					}
					if spec != python {
						reply.Result = int64(4200)
					}
					if _, err := operator.Analyses.Resolve(t.Context(), "1", nil, "charge", reply, ""); err != nil {
						t.Fatal(err)
					}
				}

				got := fields(t, doc)
				result, _ := got["output"].(map[string]any)
				if got["state"] != "DONE" || result["charged"] != int64(4200) || chargesOf(ledger) != 1 || answered != answer {
					t.Errorf("%v, result %v, %d charges, the operator answered %q; want DONE, one charge, and %q\n%s",
						got["state"], got["output"], chargesOf(ledger), answered, answer, out)
				}
			})
		}
	}
}

// A process is killed at each commit and at the act of an order, and the client repeats its request.
// An order commits five times: the record, the lock, the marker, the result of the act, and the
// response.
func TestKill9AtEachStepOfAnOrder(t *testing.T) {
	points := []string{"before-act", "after-act", "never"}
	for n := range 5 {
		points = append(points, fmt.Sprint("before-", n+1), fmt.Sprint("after-", n+1))
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			b, crash := crashable(t)
			ledger := t.TempDir() + "/ledger"
			crash(point, "http:"+ledger)
			want := "200 map[charged:4200] <nil>"
			if point == "after-5" || point == "never" {
				want = "200 replayed map[charged:4200] <nil>"
			}
			answer(t, orders(open(t, b, nil), func(string) {}), newOrder(t.Context(), "a", fmt.Sprintf(`{"ledger":%q}`, ledger)), want)
			if n := chargesOf(ledger); n != 1 {
				t.Errorf("%d charges", n)
			}
		})
	}
}
