package project_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/document"
	"taskguard/locks/project"
)

const room = "imgponic:project"

type (
	options = project.AcquireOptions
	release = project.ReleaseOptions
)

// fixture is a project, a remote store that may fail, and the reported events.
type fixture struct {
	*testing.T
	dir    string
	memory *lease.Memory[document.Lock]
	remote *leasetest.Faulty[document.Lock]
	*project.Locker

	start time.Time

	mu     sync.Mutex
	events []project.Event
}

// inBubble runs test in virtual time, as a subtest, with a remote store or without.
func inBubble(t *testing.T, name string, remote bool, test func(s *fixture)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			m := &lease.Memory[document.Lock]{}
			s := &fixture{T: t, dir: dir, memory: m, start: time.Now()}
			s.remote = leasetest.NewFaulty[document.Lock](m, nil)
			s.Locker = s.another(remote)
			s.Subscribe(s.record)
			defer time.Sleep(2 * time.Hour) // trust ends in every lease that is still held
			test(s)
		})
	})
}

// another returns a Locker of another program for the same project.
func (s *fixture) another(remote bool) *project.Locker {
	s.Helper()
	c := project.Config{Project: "imgponic", Dir: s.dir}
	if remote {
		c.Remote = s.remote
	}
	return must.Get(project.New(c))(s)
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

// short returns the type of e and the fields that it sets.
func short(e *project.Event) string {
	e.Err = cmp.Or(e.Err, &project.Error{})
	wait := e.Wait.Round(100 * time.Millisecond) // an engine's pause is up to 100 ms
	details := map[project.EventType][]any{
		project.Attempt:         {e.Strategy, e.Retry},
		project.Acquired:        {e.Strategy},
		project.FallbackEngaged: {e.Strategy},
		project.Renewed:         {e.Retry},
		project.Released:        {e.Duration},
		project.ReadonlyEntered: {e.Reason},
		project.Warned:          {e.Warning},
		project.Waiting:         {wait},
		project.RenewScheduled:  {wait},
		project.Failed:          {e.Err.Code, e.Err.Retryable},
		project.ReleaseAttempt:  {e.Retry, e.Force},
	}
	text := fmt.Sprintln(append([]any{e.Type}, details[e.Type]...)...)
	return strings.TrimSpace(strings.TrimPrefix(text, "lock:"))
}

// wantEvents fails unless exactly these events, separated by commas, were reported since the last
// call.
func (s *fixture) wantEvents(want ...string) {
	s.Helper()
	same(s, strings.Join(want, ", "), strings.Join(s.reported(), ", "))
}

func (s *fixture) wantState(want project.State) {
	s.Helper()
	same(s, want, s.State())
}

// acquired acquires the lock, or fails the test.
func (s *fixture) acquired(l *project.Locker, o options) project.Lease {
	s.Helper()
	return must.Get(l.Acquire(s.Context(), o))(s)
}

// refused fails the test unless the lock is not acquired, for good, with this code.
func (s *fixture) refused(l *project.Locker, o options, code project.Code) {
	s.Helper()
	_ = s.refusal(l, o, code)
}

// refusal is the error of an acquisition, which has this code.
func (s *fixture) refusal(l *project.Locker, o options, code project.Code) error {
	s.Helper()
	_, err := l.Acquire(s.Context(), o)
	wantCode(s, err, code, false)
	return err
}

// with runs fn under the lock.
func (s *fixture) with(fn func(ctx context.Context)) error {
	return s.WithProjectLock(s.Context(), options{}, func(ctx context.Context, _ project.Lease) error {
		fn(ctx)
		return nil
	})
}

// released releases the lock, or fails the test.
func (s *fixture) released(l *project.Locker, ls project.Lease) {
	s.Helper()
	must.OK(s, l.Release(s.Context(), ls, release{}))
}

// forced releases the lock by force.
func (s *fixture) forced(ls project.Lease) error {
	return s.Release(s.Context(), ls, release{Force: true})
}

// renewed renews the lock, or fails the test.
func (s *fixture) renewed(ls project.Lease) {
	s.Helper()
	must.Get(s.Renew(s.Context(), ls))(s)
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
	same(s, project.HeartbeatQueued, l.State())
}

// wantSince checks how long after the start it is.
func (s *fixture) wantSince(want time.Duration) {
	s.Helper()
	same(s, want, time.Since(s.start))
}

func (s *fixture) lockFile() string { return filepath.Join(s.dir, "project", ".lock") }

// block makes every call to the file fail, until unblock.
func (s *fixture) block() {
	s.Helper()
	guard := s.lockFile() + ".guard"
	must.OK(s, errors.Join(os.Remove(guard), os.Mkdir(guard, 0o700)))
}

func (s *fixture) unblock() {
	s.Helper()
	must.OK(s, os.Remove(s.lockFile()+".guard"))
}

// put writes project/.lock as another program would, now by the virtual clock.
func (s *fixture) put(content string) {
	s.Helper()
	if err := os.Mkdir(s.dir+"/project", 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		s.Fatal(err)
	}
	now := time.Now()
	must.OK(s, errors.Join(os.WriteFile(s.lockFile(), []byte(content), 0o600), os.Chtimes(s.lockFile(), now, now)))
}

// wantFile checks the content of project/.lock.
func (s *fixture) wantFile(want string) {
	s.Helper()
	same(s, want, string(must.Get(os.ReadFile(s.lockFile()))(s)))
}

func (s *fixture) wantNoFile() {
	s.Helper()
	if _, err := os.Lstat(s.lockFile()); !errors.Is(err, os.ErrNotExist) {
		s.Errorf("%s: %v; want none", s.lockFile(), err)
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
	l := lease.Lease{Owner: "other", Token: now.UnixMicro() + 7, HeartbeatAt: now, ExpiresAt: now.Add(time.Hour)}
	s.memory.Put(room, document.Lock{Lease: l, LockedAt: now, Holder: "x"})
}

// failAfter makes every call to the remote store fail from then on.
func (s *fixture) failAfter(d time.Duration, f leasetest.Fault) {
	time.AfterFunc(d, func() { s.remote.SetPlan(leasetest.Always(f)) })
}

// count returns the number of events of a type; reported still returns them.
func (s *fixture) count(kind project.EventType) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.events {
		if s.events[i].Type == kind {
			n++
		}
	}
	return n
}

// same fails the test unless got is want.
func same[T comparable](t testing.TB, want, got T) {
	t.Helper()
	if got != want {
		t.Errorf("got %v; want %v", got, want)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("err = %v; want %v", err, want)
	}
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
func once() options { return options{RetryLimit: 1} }
