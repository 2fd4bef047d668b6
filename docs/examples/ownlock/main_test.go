package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	fs "cloud.google.com/go/firestore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	guarded "taskguard/worker"
	"taskguard/worker/workertest"
)

func TestMain(m *testing.M) { os.Exit(emulatortest.Main(m)) }

// trial is one analysis, its queue, and two processes of the worker that is tried.
type trial struct {
	*testing.T
	rig  *workertest.Rig
	a, b *process
	kill func() // stops a for good

	mu                  sync.Mutex
	runs, now, together int // how often the analyzer was called, is running, and most at once
}

// process is one instance of a worker, with its own connection.
type process struct {
	http.Handler
	frozen atomic.Bool // its calls to Firestore and Cloud Tasks wait
	lose   atomic.Bool // the reply to its next commit is lost
}

// connected returns the interceptors of the connections of p.
func (p *process) connected() []grpc.DialOption {
	wait := func(ctx context.Context) error {
		for p.frozen.Load() {
			select {
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			case <-time.After(time.Second):
			}
		}
		return nil
	}

	unary := func(ctx context.Context, method string, req, reply any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if err := wait(ctx); err != nil {
			return err
		}
		err := invoke(ctx, method, req, reply, conn, opts...)
		committed := err == nil && strings.HasSuffix(method, "/Commit")
		if committed && p.lose.CompareAndSwap(true, false) {
			return status.Error(codes.Internal, "the reply was lost")
		}
		return err
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
		open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		if err := wait(ctx); err != nil {
			return nil, err
		}
		return open(ctx, desc, conn, method, opts...)
	}
	return []grpc.DialOption{grpc.WithUnaryInterceptor(unary), grpc.WithStreamInterceptor(stream)}
}

// count counts a run of the analyzer, and returns its number.
func (l *trial) count() (run int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs++
	l.now++
	l.together = max(l.together, l.now)
	return l.runs
}

// start makes a process of the worker that is tried, which runs analyze.
func (l *trial) start(own bool, clock func() time.Time, analyze func(run int) (string, error)) *process {
	p := &process{}
	run := func() (string, error) {
		n := l.count()
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.now--
		}()
		return analyze(n)
	}

	options := l.rig.Options(guarded.Options{}, p.connected()...)
	if own {
		db := must.Get(fs.NewClient(l.Context(), options.Project, options.FirestoreOptions...))(l)
		p.Handler = &worker{db, func(context.Context, string) (string, error) { return run() }, clock}
		return p
	}
	guard := must.Get(guarded.Open(l.Context(), options))(l)
	l.Cleanup(func() { _ = guard.Shutdown(context.WithoutCancel(l.Context())) })
	kind := guarded.Kind{Run: func(context.Context, guarded.Job) (any, error) { return run() }}
	p.Handler = guard.MustRegister(kind).Handler()
	return p
}

// deliver sends the task to p once more, as Cloud Tasks may.
func (l *trial) deliver(p *process) {
	r := httptest.NewRequestWithContext(l.Context(), http.MethodPost, "/", strings.NewReader(`{"analysis_id": "x"}`))
	p.ServeHTTP(httptest.NewRecorder(), r)
}

// scenario is what happens to one analysis, and how it ends.
type scenario struct {
	// ahead is how far the workers' clocks are ahead of Firestore's, except the clock of the first process of
	// a lock of your own.
	ahead        time.Duration
	lose         bool // the reply to the first process's first commit is lost
	analyze      func(l *trial, run int) (string, error)
	events       func(l *trial)
	own, guarded outcome
}

// outcome is what the user of a worker sees.
type outcome struct {
	status, result any
	runs, together int
}

// try submits one analysis to a queue that delivers to the worker's first process, plays the scenario,
// and returns the outcome a week later.
func (s scenario) try(t *testing.T, own bool) (got outcome) {
	synctest.Test(t, func(t *testing.T) {
		l := &trial{T: t, rig: workertest.New(t)}
		stores := func() time.Time { return time.Now().Add(-s.ahead) }
		l.rig.Firestore.Close()
		l.rig.Firestore = firestore.NewServer(firestore.Options{Now: stores})
		t.Cleanup(l.rig.Firestore.Close)

		run := func(n int) (string, error) { return s.analyze(l, n) }
		l.a, l.b = l.start(own, stores, run), l.start(own, time.Now, run)
		died := make(chan struct{})
		l.kill = func() {
			l.a.frozen.Store(true)
			close(died)
		}

		submitter := must.Get(guarded.Open(t.Context(), l.rig.Options(guarded.Options{})))(t)
		t.Cleanup(func() { _ = submitter.Shutdown(context.WithoutCancel(t.Context())) })
		work := submitter.MustRegister(guarded.Kind{}).WithoutRun()
		l.rig.Mux.HandleFunc("POST "+work.Path, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-died: // another instance gets it
				l.b.ServeHTTP(w, r)
				return
			default:
			}
			answer, answered := httptest.NewRecorder(), make(chan struct{})
			go func() {
				defer close(answered)
				l.a.ServeHTTP(answer, r)
			}()
			select {
			case <-answered:
				w.WriteHeader(answer.Code)
			case <-died:
				w.WriteHeader(http.StatusServiceUnavailable) // Cloud Run's answer for a killed instance
			}
		})

		l.a.lose.Store(s.lose)
		if submitted, err := work.Submit(t.Context(), "x", "the input"); err != nil || !submitted.Booked {
			t.Fatal(submitted, err)
		}
		s.events(l)
		time.Sleep(7 * 24 * time.Hour)

		options := l.rig.Options(guarded.Options{})
		db := must.Get(fs.NewClient(t.Context(), options.Project, options.FirestoreOptions...))(t)
		doc := must.Get(db.Collection("analyses").Doc("x").Get(t.Context()))(t)
		l.mu.Lock()
		defer l.mu.Unlock()
		fields := doc.Data()
		got = outcome{fields["status"], fields["result"], l.runs, l.together}
		l.a.frozen.Store(false)
	})
	return got
}

// takes returns an analyzer that needs d, whatever happens to its context.
func takes(d time.Duration) func(*trial, int) (string, error) {
	return func(*trial, int) (string, error) {
		time.Sleep(d)
		return "done", nil
	}
}

func TestOwnLock(t *testing.T) {
	for name, s := range map[string]scenario{
		"1 a run is longer than the lock, and a delivery comes twice: two runs at once": {
			analyze: takes(12 * time.Minute),
			events: func(l *trial) {
				time.Sleep(7 * time.Minute)
				l.deliver(l.a)
			},
			own:     outcome{"READY", "done", 2, 2},
			guarded: outcome{"READY", "done", 1, 1},
		},
		"2 a process that was paused writes its old result over the new one": {
			analyze: func(_ *trial, run int) (string, error) {
				if run == 1 {
					time.Sleep(20 * time.Minute)
					return "old", nil
				}
				return "new", nil
			},
			events: func(l *trial) {
				time.Sleep(time.Second)
				l.a.frozen.Store(true)
				time.Sleep(12 * time.Minute)
				l.deliver(l.b)
				l.a.frozen.Store(false)
			},
			own:     outcome{"READY", "old", 2, 2},
			guarded: outcome{"READY", "new", 2, 2},
		},
		"3 a worker is killed, and the retry is acknowledged because of its lock: nobody runs it": {
			analyze: func(l *trial, run int) (string, error) {
				if run == 1 {
					<-l.Context().Done()
				}
				return "done", nil
			},
			events: func(l *trial) {
				time.Sleep(time.Minute)
				l.kill()
			},
			own:     outcome{"PROCESSING", nil, 1, 1},
			guarded: outcome{"READY", "done", 2, 2}, // the killed one counts as running
		},
		"3 the reply to the lock's commit is lost, and the retry is acknowledged: nobody runs it": {
			lose:    true,
			analyze: takes(time.Minute),
			events:  func(*trial) {},
			own:     outcome{"PROCESSING", nil, 0, 0},
			guarded: outcome{"READY", "done", 1, 1},
		},
		"4 the clock of another machine is ahead: two runs at once": {
			ahead:   6 * time.Minute,
			analyze: takes(4 * time.Minute),
			events: func(l *trial) {
				time.Sleep(time.Minute)
				l.deliver(l.b)
			},
			own:     outcome{"READY", "done", 2, 2},
			guarded: outcome{"READY", "done", 1, 1},
		},
		"5 an input that always fails is tried for ever": {
			analyze: func(*trial, int) (string, error) { return "", errors.New("no such page") },
			events:  func(*trial) {},
			own:     outcome{"PROCESSING", nil, 183, 1}, // until Cloud Tasks has waited an hour, and then each hour
			guarded: outcome{"FAILED", nil, 10, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := s.try(t, true); got != s.own {
				t.Errorf("a lock of your own: %+v, want %+v", got, s.own)
			}
			if got := s.try(t, false); got != s.guarded {
				t.Errorf("taskguard: %+v, want %+v", got, s.guarded)
			}
		})
	}
}
