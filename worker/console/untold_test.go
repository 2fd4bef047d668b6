package console_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/worker/console"
)

// mute is a shelf whose stream may fall silent, or be late, while the shelf answers:
// as Google's client is where Listen alone is refused.
type mute struct {
	*shelf
	mu    sync.Mutex
	quiet bool
	late  time.Duration // of each telling
	tries int
}

func (m *mute) set(quiet bool, late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.quiet, m.late = quiet, late
}

func (m *mute) now() (quiet bool, late time.Duration, tries int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.quiet, m.late, m.tries
}

func (m *mute) Follow(ctx context.Context, limit int, each func(console.News)) error {
	m.mu.Lock()
	m.tries++
	m.mu.Unlock()
	return m.shelf.Follow(ctx, limit, func(n console.News) {
		quiet, late, _ := m.now()
		if quiet {
			<-ctx.Done() // and so to the end of this stream
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(late):
			each(n)
		}
	})
}

func TestALockIsNotCalledStaleWhereTheStreamAloneHasFallenSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &mute{shelf: newShelf(heldBy("a", "w/1", 1, 3*time.Minute))}
		server := open(t, source, console.Options{})
		s := watch(t, server, "/events")
		s.until("all", rows("a"))
		time.Sleep(time.Minute)
		known := storeNow().UTC().Format("15:04:05")
		source.set(true, 0)
		for range 5 { // it is renewed
			time.Sleep(time.Minute)
			source.put(heldBy("a", "w/1", 1, 3*time.Minute))
			has(t, rowOf(t, page(t, server, "/"), "a"), `data-lock="held"`)
		}
		words := "Firestore answers, but has told of no change since "
		has(t, page(t, server, "/"), words)
		dark := 0
		for len(s.lines) > 0 {
			m := <-s.lines
			for _, r := range m.Rows {
				has(t, r.HTML, `data-lock="held"`)
			}
			if m.Feed.Word == "dark" {
				dark++
				has(t, m.Feed.Dark, words)
				hasNot(t, m.Feed.Dark, known) // it was known until it was renewed for the first time
			} else if dark > 0 {
				t.Errorf("told in the silence: %+v", m)
			}
		}
		if dark < 3*6 {
			t.Errorf("told %d times that it is silent", dark)
		}
		source.set(false, 0)
		time.Sleep(80 * time.Second) // the longest that an attempt waits
		m := s.until("live", func(m told) bool { return m.Feed.Word == "live" && len(m.Rows) == 1 })
		has(t, m.Rows[0].HTML, `data-lock="held"`)
	})
}

func TestAStreamThatNeverSpeaksIsSaidToBeSilentAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		source := &mute{shelf: newShelf(of("a", "QUEUED")), quiet: true}
		server := open(t, source, console.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		s := watch(t, server, "/events")
		began := time.Now()
		m := s.until("dark", func(m told) bool { return m.Feed.Word == "dark" })
		has(t, m.Feed.Dark, "Firestore answers, but has told of no change since ", "; nothing is known yet")
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("after %v", took)
		}
		time.Sleep(10 * time.Minute)
		if _, _, tries := source.now(); tries < 5 || tries > 12 {
			t.Errorf("tried %d times in 10 minutes", tries)
		}
		if n := strings.Count(log.String(), "the analyses cannot be followed"); n != 1 {
			t.Errorf("logged %d times: %s", n, &log)
		}
	})
}

func TestMuchThatComesSlowlyComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, open(t, &mute{shelf: newShelf(of("a", "QUEUED")), late: 35 * time.Second}, console.Options{}), "/events")
		time.Sleep(time.Minute)
		s.until("all", rows("a"))
	})
}

// In each moment something is written that has not arrived.
func TestNewsOnTheirWayAreNoSilence(t *testing.T) {
	for _, late := range []time.Duration{0, 100 * time.Millisecond, 4 * time.Second, 7 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			source := &mute{shelf: newShelf(of("a", "QUEUED"))}
			s := watch(t, open(t, source, console.Options{}), "/events")
			s.until("all", rows("a"))
			source.set(false, late)
			for range 3000 {
				source.put(of("a", "QUEUED"))
				time.Sleep(100 * time.Millisecond)
				for len(s.lines) > 0 {
					if m := <-s.lines; m.Feed.Word != "live" {
						t.Fatalf("%v late: told %+v", late, m.Feed)
					}
				}
			}
			if _, _, tries := source.now(); tries != 1 {
				t.Errorf("%v late: followed %d times", late, tries)
			}
		})
	}
}

// fleeting is a shelf on which something is written now and then, and deleted before
// a stream could tell of it.
type fleeting struct {
	*mute
	asked int
}

func (f *fleeting) Newest(ctx context.Context) (console.Newest, error) {
	n, err := f.shelf.Newest(ctx)
	if f.asked++; f.asked%2 == 0 {
		n.Written = n.At
	}
	return n, err
}

func TestWhatWasDeletedBeforeItWasToldIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &fleeting{mute: &mute{shelf: newShelf(of("a", "QUEUED"))}}
		s := watch(t, open(t, source, console.Options{}), "/events")
		s.until("all", rows("a"))
		time.Sleep(5 * time.Minute)
		if _, _, tries := source.now(); tries != 1 {
			t.Errorf("followed %d times", tries)
		}
	})
}

// woken is a shelf on which time has passed that this machine has slept through.
type woken struct {
	*shelf
	slept time.Duration
}

func (w *woken) Newest(ctx context.Context) (console.Newest, error) {
	n, err := w.shelf.Newest(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	n.At = n.At.Add(w.slept)
	return n, err
}

func TestTheTimeThatALaptopSleepsPassesForTheLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &woken{shelf: newShelf(heldBy("dead", "w/1", 1, 5*time.Minute), heldBy("long", "w/1", 1, time.Hour))}
		s := watch(t, open(t, source, console.Options{}), "/events")
		s.until("all", rows("dead", "long"))
		time.Sleep(time.Minute)
		source.mu.Lock()
		source.slept = 10 * time.Minute
		source.mu.Unlock()
		for len(s.lines) > 0 {
			<-s.lines
		}
		began := time.Now()
		m := s.until("they have aged", rows("dead", "long"))
		has(t, m.Rows[0].HTML, `data-lock="stale"`)
		has(t, m.Rows[1].HTML, `data-lock="held"`, ">48 min ")
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("after %v", took)
		}
		time.Sleep(time.Minute)
		for len(s.lines) > 0 {
			if m := <-s.lines; len(m.Rows) > 0 {
				t.Errorf("told again: %+v", m)
			}
		}
	})
}
