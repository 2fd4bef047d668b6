package project_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/document"
	"taskguard/locks/project"
)

const room = "imgponic:project"

// fixture is a project, a remote store that may fail, and the reported events.
type fixture struct {
	*testing.T
	dir    string
	memory *lease.Memory[document.Lock]
	remote *leasetest.Faulty[document.Lock]
	*project.Locker

	mu     sync.Mutex
	events []project.Event
}

// inBubble runs test in virtual time, with a remote store or without.
func inBubble(t *testing.T, remote bool, test func(s *fixture)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := &lease.Memory[document.Lock]{}
		s := &fixture{T: t, dir: dir, memory: m, remote: leasetest.NewFaulty[document.Lock](m, nil)}
		s.Locker = s.another(remote)
		s.Subscribe(s.record)
		defer time.Sleep(2 * time.Hour) // trust ends in every lease that is still held
		test(s)
	})
}

// another returns a Locker of another program for the same project.
func (s *fixture) another(remote bool) *project.Locker {
	s.Helper()
	c := project.Config{Project: "imgponic", Dir: s.dir}
	if remote {
		c.Remote = s.remote
	}
	return must(project.New(c))(s)
}

func (s *fixture) record(e project.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

// reported returns the events since the last call, in short.
func (s *fixture) reported() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for i := range s.events {
		all = append(all, short(&s.events[i]))
	}
	s.events = nil
	return all
}

func short(e *project.Event) string {
	e.Err = cmp.Or(e.Err, &project.Error{})
	details := map[project.EventType][]any{
		project.Attempt: {e.Strategy, e.Retry}, project.Acquired: {e.Strategy}, project.FallbackEngaged: {e.Strategy},
		project.Renewed: {e.Retry}, project.Released: {e.Duration}, project.ReadonlyEntered: {e.Reason}, project.Warned: {e.Warning},
		project.Waiting:        {e.Wait.Round(100 * time.Millisecond)}, // an engine's pause is up to 100 ms
		project.RenewScheduled: {e.Wait.Round(100 * time.Millisecond)},
		project.Failed:         {e.Err.Code, e.Err.Retryable}, project.ReleaseAttempt: {e.Retry, e.Force},
	}
	return strings.TrimSpace(strings.TrimPrefix(fmt.Sprintln(append([]any{e.Type}, details[e.Type]...)...), "lock:"))
}

// wantEvents fails unless exactly these events, separated by commas, were reported since the last
// call.
func (s *fixture) wantEvents(want ...string) {
	s.Helper()
	if got, want := strings.Join(s.reported(), ", "), strings.Join(want, ", "); got != want {
		s.Errorf("events:\n%s\nwant:\n%s", got, want)
	}
}

func (s *fixture) wantState(want project.State) {
	s.Helper()
	if got := s.State(); got != want {
		s.Errorf("state %s; want %s", got, want)
	}
}

// acquired acquires the lock, or fails the test.
func (s *fixture) acquired(l *project.Locker, o project.AcquireOptions) project.Lease {
	s.Helper()
	return must(l.Acquire(s.Context(), o))(s)
}

// released releases the lock, or fails the test.
func (s *fixture) released(l *project.Locker, ls project.Lease) {
	s.Helper()
	check(s, l.Release(s.Context(), ls, project.ReleaseOptions{}))
}

// renewed renews the lock, or fails the test.
func (s *fixture) renewed(ls project.Lease) {
	s.Helper()
	must(s.Renew(s.Context(), ls))(s)
}

// reset resets the Locker, or fails the test.
func (s *fixture) reset() {
	s.Helper()
	if !s.Reset() {
		s.Errorf("no reset in state %s", s.State())
	}
}

func (s *fixture) wantHeld(l *project.Locker) {
	s.Helper()
	if got := l.State(); got != project.HeartbeatQueued {
		s.Errorf("state %s; want the lock still held", got)
	}
}

// wantOwner checks the owner in the remote store.
func (s *fixture) wantOwner(want string) {
	s.Helper()
	if c, err := s.memory.Load(s.Context(), room, lease.OnlyLease); err != nil || c.Doc.Owner != want {
		s.Errorf("the remote store has %+v, %v; want the owner %q", c.Doc, err, want)
	}
}

// holdRemote lets another owner hold the room for longer than any test waits.
func (s *fixture) holdRemote() {
	now := time.Now()
	s.memory.Put(room, document.Lock{
		Lease: lease.Lease{Owner: "other", Token: now.UnixMicro() + 7, HeartbeatAt: now, ExpiresAt: now.Add(time.Hour)}, LockedAt: now, Holder: "x",
	})
}

// wantCode fails unless err is an *Error of that code.
func wantCode(t testing.TB, err error, code project.Code, retryable bool) {
	t.Helper()
	e := theError(err)
	if e.Code != code || e.Retryable != retryable {
		t.Fatalf("%v, retryable %t; want %s, %t", err, e.Retryable, code, retryable)
	}
}

// theError is err's *Error; the zero one if it is none.
func theError(err error) *project.Error {
	e := &project.Error{}
	errors.As(err, &e)
	return e
}

var errFn = errors.New("fn's own")

// once returns options for a single attempt.
func once() project.AcquireOptions { return project.AcquireOptions{RetryLimit: 1} }

func nothing(context.Context, project.Lease) error { return nil }

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns the value of a call that has to succeed.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}
