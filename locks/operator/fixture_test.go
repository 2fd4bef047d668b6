package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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

// file opens the state file as another program does.
func (w *fixture) file() *operator.File {
	w.Helper()
	f := must(operator.Open(w.path))(w)
	f.Now = func() time.Time { return w.now }
	return f
}

// pool returns a session's Pool.
func (w *fixture) pool(session string) *operator.Pool { return w.over(w.file(), session) }

func (w *fixture) over(store lease.Store[operator.State], session string) *operator.Pool {
	w.Helper()
	return must(operator.New(store, w.path, session, six, w.o))(w)
}

// assign assigns an operator, or fails the test.
func (w *fixture) assign(session, id string) operator.Assignment {
	w.Helper()
	a, err := w.pool(session).Assign(w.Context(), id)
	if err != nil {
		w.Fatalf("assign %q to %s: %v", id, session, err)
	}
	return a
}

// wantBusy fails unless kana is refused to session as another's.
func (w *fixture) wantBusy(session string) {
	w.Helper()
	a, err := w.pool(session).Assign(w.Context(), "kana")
	var busy *operator.BusyError
	if !errors.As(err, &busy) || busy.Operator.ID != "kana" || a != (operator.Assignment{}) {
		w.Errorf("assign kana to %s: %+v, %v; want it busy", session, a, err)
	}
}

// put writes the file as another program does.
func (w *fixture) put(content string) {
	w.Helper()
	check(w, os.WriteFile(w.path, []byte(content), 0o600))
}

// written returns the values in the file, by session.
func (w *fixture) written() map[string]string {
	w.Helper()
	var file struct {
		Storage map[string]struct {
			Data string `json:"data"`
		} `json:"storage"`
	}
	data, err := os.ReadFile(w.path)
	if err = errors.Join(err, json.Unmarshal(data, &file)); err != nil {
		w.Fatal(err)
	}
	values := map[string]string{}
	for session, e := range file.Storage {
		values[session] = e.Data
	}
	return values
}

// wantWritten fails unless the file holds exactly these, each "session=value", in order.
func (w *fixture) wantWritten(want ...string) {
	w.Helper()
	var got []string
	for session, value := range w.written() {
		got = append(got, session+"="+value)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.Errorf("the file holds %v; want %v", got, want)
	}
}

// between is a store that calls happens before its first write.
type between struct {
	lease.Store[operator.State]
	happens func()
}

func (b *between) Swap(ctx ctx, key string, prev cell, next operator.State) (cell, error) {
	if b.happens != nil {
		b.happens()
		b.happens = nil
	}
	return b.Store.Swap(ctx, key, prev, next)
}

type (
	ctx  = context.Context
	cell = lease.Cell[operator.State]
)

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
