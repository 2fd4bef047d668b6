package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/operator"
)

// six are the seed's operators.
var six = []operator.Operator{
	{ID: "tsukuyomi", Name: "つくよみちゃん"}, {ID: "angie", Name: "angie"}, {ID: "alma", Name: "alma"},
	{ID: "akane", Name: "akane"}, {ID: "dia", Name: "dia"}, {ID: "kana", Name: "kana"},
}

var noon = time.Date(2025, 8, 18, 12, 0, 0, 0, time.UTC)

// fixture is a state file and the current time.
type fixture struct {
	*testing.T
	path string
	now  time.Time
	o    operator.Options
}

func newFixture(t *testing.T) *fixture {
	return &fixture{T: t, path: filepath.Join(t.TempDir(), "state.json"), now: noon}
}

// run runs test as a subtest.
func run(t *testing.T, name string, test func(w *fixture)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { test(newFixture(t)) })
}

// inBubble runs test in virtual time, as a subtest.
func inBubble(t *testing.T, name string, test func(w *fixture)) {
	t.Helper()
	run(t, name, func(w *fixture) {
		synctest.Test(w.T, func(t *testing.T) { test(&fixture{T: t, path: w.path, now: noon}) })
	})
}

// file opens the state file as another program does.
func (w *fixture) file() *operator.File {
	w.Helper()
	f := must.Get(operator.Open(w.path))(w)
	f.Now = func() time.Time { return w.now }
	return f
}

// pool returns a session's Pool.
func (w *fixture) pool(session string) *operator.Pool { return w.over(w.file(), session) }

func (w *fixture) over(store lease.Store[operator.State], session string) *operator.Pool {
	w.Helper()
	return must.Get(operator.New(store, w.path, session, six, w.o))(w)
}

// try tries to assign an operator.
func (w *fixture) try(session, id string) error {
	w.Helper()
	_, err := w.pool(session).Assign(w.Context(), id)
	return err
}

// assign assigns an operator, or fails the test.
func (w *fixture) assign(session, id string) operator.Assignment {
	w.Helper()
	return must.Get(w.pool(session).Assign(w.Context(), id))(w)
}

// wantBusy fails unless kana is refused to session as another's.
func (w *fixture) wantBusy(session string) {
	w.Helper()
	a, err := w.pool(session).Assign(w.Context(), "kana")
	same(w, operator.Assignment{}, a)
	if busy, ok := errors.AsType[*operator.BusyError](err); !ok || busy.Operator.ID != "kana" {
		w.Errorf("assign kana to %s: %v; want it busy", session, err)
	}
}

// wantGivesUp fails unless an assignment gives up after 2 s, and names the file that another program holds.
func (w *fixture) wantGivesUp(suffix string) {
	w.Helper()
	began := time.Now()
	err := w.try("A", "dia")
	wantErr(w, err, lease.ErrUnavailable)
	same(w, true, strings.Contains(err.Error(), w.path+suffix))
	same(w, 2*time.Second, time.Since(began))
}

// put writes the file as another program does.
func (w *fixture) put(content string) {
	w.Helper()
	must.OK(w, os.WriteFile(w.path, []byte(content), 0o600))
}

// wantContent compares the whole file.
func (w *fixture) wantContent(want string) {
	w.Helper()
	same(w, want, string(must.Get(os.ReadFile(w.path))(w)))
}

// wantWritten fails unless the file holds exactly these, each "session=value", in order.
func (w *fixture) wantWritten(want ...string) {
	w.Helper()
	var file struct {
		Storage map[string]struct{ Data string }
	}
	must.OK(w, json.Unmarshal(must.Get(os.ReadFile(w.path))(w), &file))
	var got []string
	for session, e := range file.Storage {
		got = append(got, session+"="+e.Data)
	}
	slices.Sort(got)
	same(w, strings.Join(want, " "), strings.Join(got, " "))
}

func (w *fixture) wantMode(path string) {
	w.Helper()
	same(w, 0o600, must.Get(os.Stat(path))(w).Mode())
}

// between is a store that calls happens before its first write.
type between struct {
	lease.Store[operator.State]
	happens func()
}

func (b *between) Swap(ctx context.Context, key string, prev lease.Cell[operator.State], next operator.State,
) (lease.Cell[operator.State], error) {
	if b.happens != nil {
		b.happens()
		b.happens = nil
	}
	return b.Store.Swap(ctx, key, prev, next)
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
