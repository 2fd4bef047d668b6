package worker_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/emulatortest"
	"taskguard/lease"
	"taskguard/worker"
)

// asCaller makes the test binary a program that calls Do.
const asCaller = "TEST_AS_CALLER_OF_DO"

const (
	processes = 4
	callers   = 16 // of each process
	killed    = 2  // of the processes that run the function
)

// answered is what a caller prints when Do has returned.
type answered struct {
	Result    json.RawMessage
	Ran       bool // this call has run the function
	OutOfTime bool // it has lost its lock because the machine is slow, and the caller calls again
}

// callDo calls Do from many goroutines until each has the result.
func callDo() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	g, err := worker.Open(ctx, worker.Options{Lock: lease.Policy{TTL: 3 * time.Second}})
	if err != nil {
		return err
	}
	client, err := firestore.NewClient(ctx, os.Getenv("GOOGLE_CLOUD_PROJECT"))
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	report := func(a answered) {
		mu.Lock()
		defer mu.Unlock()
		if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	for range callers {
		all.Go(func() {
			for {
				var a answered
				var err error
				a.Result, err = worker.Do(ctx, g, "key", func(ctx context.Context, job worker.Job) (json.RawMessage, error) {
					a.Ran = true
					return effect(ctx, client, job.LockToken)
				})
				var running *worker.RunningError
				var lost *lease.LostError
				switch {
				case errors.As(err, &running):
					time.Sleep(min(running.RetryIn, 100*time.Millisecond))
				case errors.As(err, &lost) && lost.Reason == lease.OutOfTime:
					report(answered{OutOfTime: true})
				case err != nil:
					fmt.Fprintln(os.Stderr, err)
					return
				default:
					report(a)
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(g.Shutdown(ctx), client.Close())
}

// effect records the run in runs/TOKEN, waits for the permission in control/permit, and adds
// the run's effect to effects/key, unless a later run has been there.
func effect(ctx context.Context, client *firestore.Client, token int64) (json.RawMessage, error) {
	run := map[string]any{"token": token, "pid": os.Getpid()}
	if _, err := client.Collection("runs").Doc(strconv.FormatInt(token, 10)).Create(ctx, run); err != nil {
		return nil, err
	}
	for permit := client.Doc("control/permit"); ; {
		if _, err := permit.Get(ctx); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	doc := client.Doc("effects/key")
	err := client.RunTransaction(ctx, func(_ context.Context, tx *firestore.Transaction) error {
		all, err := tx.GetAll([]*firestore.DocumentRef{doc})
		if err != nil {
			return err
		}
		if highest, _ := all[0].Data()["token"].(int64); highest >= token {
			return fmt.Errorf("the token %d is not above %d", token, highest)
		}
		return tx.Set(doc, map[string]any{"token": token, "effects": firestore.Increment(1)}, firestore.MergeAll)
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"token": token, "pid": os.Getpid(), "text": rand.Text()})
}

// caller is a process of callers.
type caller struct {
	*exec.Cmd
	out bytes.Buffer
	log emulatortest.Log
}

func TestManyProcessesRunAFunctionOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := emulatortest.Embedded(t)
	host := b.Listen(t)
	byPID, ended := map[int]*caller{}, map[int]bool{}
	start := func() {
		c := &caller{Cmd: exec.CommandContext(ctx, os.Args[0])}
		c.Env = []string{asCaller + "=1", "GOOGLE_CLOUD_PROJECT=" + b.Project, "FIRESTORE_EMULATOR_HOST=" + host}
		c.Stdout, c.Stderr = &c.out, &c.log
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		byPID[c.Process.Pid] = c
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	}
	for range processes {
		start()
	}
	runs := collection(t, b, "runs")
	for range killed {
		pid := awaitRun(ctx, t, runs, ended)
		ended[pid] = true
		if err := byPID[pid].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = byPID[pid].Wait() // it was killed
		start()
	}
	awaitRun(ctx, t, runs, ended)
	if _, err := collection(t, b, "control").Doc("permit").Set(ctx, map[string]any{}); err != nil {
		t.Fatal(err)
	}
	var results []answered
	ran, outOfTime := 0, 0
	for pid, c := range byPID {
		if !ended[pid] {
			if err := c.Wait(); err != nil {
				t.Fatalf("a process: %v: %s", err, c.log.String())
			}
		}
		for lines := bufio.NewScanner(&c.out); lines.Scan(); {
			var a answered
			if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
				t.Fatal(err)
			}
			if a.OutOfTime {
				outOfTime++
				continue
			}
			if results = append(results, a); a.Ran {
				ran++
			}
			if !bytes.Equal(a.Result, results[0].Result) {
				t.Errorf("the results %s and %s differ", a.Result, results[0].Result)
			}
		}
		if text := c.log.String(); text != "" {
			t.Errorf("a process: %s", text)
		}
	}
	if len(results) != processes*callers {
		t.Fatalf("%d callers have a result, want %d", len(results), processes*callers)
	}
	var result struct{ Token int64 }
	if err := json.Unmarshal(results[0].Result, &result); err != nil {
		t.Fatal(err)
	}
	effects := fields(t, collection(t, b, "effects").Doc("key"))
	all, err := runs.Documents(ctx).GetAll()
	if err != nil {
		t.Fatal(err)
	}
	if got := len(all); ran != 1 || got < killed+1 || got > killed+1+outOfTime {
		t.Errorf("%d runs of which %d gave a result; want %d and 1, or %d more", got, ran, killed+1, outOfTime)
	}
	if n, _ := effects["effects"].(int64); effects["token"] != result.Token || n < 1 || n > int64(1+outOfTime) {
		t.Errorf("effects %v, want one of the token %d", effects, result.Token)
	}
	checkRecord(t, collection(t, b, "idempotency").Doc("key"), map[string]any{"status": "READY", "lockToken": result.Token})
}

// awaitRun waits until the last run is of a process that has not ended, and returns its id.
func awaitRun(ctx context.Context, t *testing.T, runs *firestore.CollectionRef, ended map[int]bool) (pid int) {
	t.Helper()
	for ; ; time.Sleep(20 * time.Millisecond) {
		last, err := runs.OrderBy("token", firestore.Desc).Limit(1).Documents(ctx).GetAll()
		if err != nil {
			t.Fatal(err)
		}
		if len(last) == 1 {
			if pid = int(last[0].Data()["pid"].(int64)); !ended[pid] {
				return pid
			}
		}
	}
}
