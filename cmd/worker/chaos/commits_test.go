package chaos

import (
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// commitFaults are what can happen to a commit.
var commitFaults = []fault{
	{name: "reply lost, Unavailable", code: codes.Unavailable}, // which Google's library sends again by itself
	{name: "reply lost, DeadlineExceeded", code: codes.DeadlineExceeded},
	{name: "dropped, Unavailable", apply: never, code: codes.Unavailable},
	{name: "dropped, DeadlineExceeded", apply: never, code: codes.DeadlineExceeded},
	{name: "applied after the resolving read", apply: later, code: codes.DeadlineExceeded},
	{name: "sent twice", apply: twice},
}

// commitCase is one fault on the n-th commit of a kind on an analysis of its
// own.
type commitCase struct {
	id    string
	kind  kind
	n     int
	fault fault
	runs  int // that it takes: an acquisition or a release comes again in the next
}

func commitCases() (all []commitCase) {
	for _, k := range []kind{acquire, heartbeat, finish, release} {
		for n := 1; n <= 3; n++ {
			for i, f := range commitFaults {
				c := commitCase{id: fmt.Sprintf("%s-%d-%d", k, n, i), kind: k, n: n, fault: f, runs: 1}
				switch k {
				case acquire:
					c.runs = n
				case release:
					c.runs = n + 1
				}
				c.fault.name = c.id
				all = append(all, c)
			}
		}
	}
	return all
}

// analyze fails for now until the last run, and lets heartbeats come where they
// are what is to fail.
func (c commitCase) analyze(p *proxy, r *run) int {
	if c.kind == heartbeat {
		for p.count(c.id) == 0 || p.tally(c.id)[heartbeat] < c.n {
			if r.works(50 * time.Millisecond); r.isGone() {
				break
			}
		}
	}
	if int(r.token) < c.runs {
		return http.StatusInternalServerError
	}
	return http.StatusOK
}

// judge faults the n-th commit of the kind. There is but one finish, so the
// second is reached by dropping the first.
func (c commitCase) judge(now *call) fault {
	switch {
	case now.kind != c.kind || now.nth > c.n:
		return fault{}
	case now.nth == c.n:
		return c.fault
	case c.kind == finish:
		return fault{name: c.id + " before", apply: never, code: codes.DeadlineExceeded}
	}
	return fault{}
}

func TestAFaultOnOneCommitIsNotSeenOutside(t *testing.T) {
	t.Parallel()
	cases := map[string]commitCase{}
	for _, c := range commitCases() {
		cases[c.id] = c
	}
	s := newStage(t, nil)
	s.analyzer.analyze = func(r *run) int { return cases[r.analysis].analyze(s.proxy, r) }
	s.proxy.script(func(now *call) fault {
		if c, ok := cases[now.doc]; ok {
			return c.judge(now)
		}
		return fault{}
	})
	p := s.start(t, "LOCK_TTL=20s") // no lock is lost for want of processors
	var done sync.WaitGroup
	for _, c := range cases {
		s.create(t, c.id, nil)
		done.Go(func() { c.check(t, s, p) })
	}
	done.Wait()
}

// check delivers the analysis until it is READY. It is called concurrently.
func (c commitCase) check(t *testing.T, s *stage, p *process) {
	about := fmt.Sprintf("%s %d, %s", c.kind, c.n, commitFaults[c.id[len(c.id)-1]-'0'].name)
	for i := 1; i <= c.runs; i++ {
		code, reason := http.StatusInternalServerError, `"retry"`
		if i == c.runs {
			code, reason = http.StatusOK, fmt.Sprintf(`"lock_token":%d`, i)
		}
		if got := p.deliver(t.Context(), c.id); !got.is(code, reason) {
			t.Errorf("%s: delivery %d: %s", about, i, got)
		}
	}
	if n := s.proxy.count(c.id); n != 1 {
		t.Errorf("%s: injected %d times, want once", about, n)
	}
	snap, err := s.doc(c.id).Get(t.Context())
	if err != nil {
		t.Error(about, err)
		return
	}
	doc, want := snap.Data(), int64(c.runs)
	result, _ := doc["result"].(map[string]any)
	if !ready(doc) || doc["lockOwner"] != nil || doc["lockToken"] != want || doc["attempts"] != want || result["token"] != want || doc["lastError"] != nil {
		t.Errorf("%s: document %v", about, doc)
	}
	if runs := s.analyzer.of(c.id); len(runs) != c.runs {
		t.Errorf("%s: %d runs, want %d", about, len(runs), c.runs)
	}
	n := s.proxy.tally(c.id)
	if n[acquire] != c.runs || n[release] != c.runs-1 || n[finish] != 1 || n[other] != 0 || c.kind == heartbeat && n[heartbeat] < c.n {
		t.Errorf("%s: written %v", about, n)
	}
	for _, bad := range judged(s.proxy.written(c.id)).bad {
		t.Errorf("%s: %s", about, bad)
	}
}

// The release of a worker that is stopped takes back the attempt, once.
func TestAFaultOnTheReleaseAtSIGTERMIsNotSeenOutside(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(r *run) int { return r.works(patience) })
	s.proxy.script(func(now *call) fault {
		if now.kind != release || now.nth != 1 {
			return fault{}
		}
		f := commitFaults[now.doc[0]-'0']
		f.name = now.doc
		return f
	})
	s.queue = newQueue(t, nil)
	p := s.start(t, "LOCK_TTL=60s", "LOCK_HEARTBEAT=20s")
	answers := make([]<-chan reply, len(commitFaults))
	for i := range commitFaults {
		s.create(t, fmt.Sprint(i), nil)
		answers[i] = p.delivered(t, fmt.Sprint(i))
		s.analyzer.running(t, fmt.Sprint(i))
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for i, f := range commitFaults {
		id := fmt.Sprint(i)
		if got := await(t, "the answer", answers[i]); !got.is(200, `"shutting_down"`) {
			t.Errorf("%s: %s", f.name, got)
		}
		doc, n := s.get(t, id).Data(), s.proxy.tally(id)
		if doc["status"] != "QUEUED" || doc["lockOwner"] != nil || doc["attempts"] != int64(0) || doc["lockToken"] != int64(1) {
			t.Errorf("%s: document %v", f.name, doc)
		}
		if n[release] != 1 || s.proxy.count(id) != 1 {
			t.Errorf("%s: injected %d times, written %v", f.name, s.proxy.count(id), n)
		}
	}
	if code := p.exited(); code != 0 {
		t.Errorf("exit %d, want 0", code)
	}
}
