package console_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/worker/console"
)

// brittle is a shelf whose stream breaks, or is refused.
type brittle struct {
	*shelf
	mu    sync.Mutex
	err   error           // of Follow, while it is set
	whole context.Context // ends with the stream
	tries int             // of Follow
	fails int             // how many answers of Newest fail from now on
}

func newBrittle(t *testing.T, all ...console.Whole) *brittle {
	return &brittle{shelf: newShelf(all...), whole: t.Context()}
}

func (b *brittle) set(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
}

func (b *brittle) tried() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tries
}

func (b *brittle) Follow(ctx context.Context, limit int, each func(console.News)) error {
	b.mu.Lock()
	b.tries++
	err, whole := b.err, b.whole
	b.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(whole, end)()
	return b.shelf.Follow(ctx, limit, each)
}

func (b *brittle) Newest(ctx context.Context) (console.Newest, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails--; b.fails >= 0 {
		return console.Newest{}, errDark
	}
	return b.shelf.Newest(ctx)
}

// Its holder may well have renewed it since.
func TestInTheDarkALockStaysAsItWasLastKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(heldBy("a", "w/1", 1, 3*time.Minute), of("b", "QUEUED"))
		server := open(t, source, console.Options{})
		list, one := watch(t, server, "/events"), watch(t, server, "/events?id=a")
		list.until("all", rows("a", "b"))
		known := storeNow().Add(15 * time.Second).UTC().Format("15:04:05") // it answers then, and has no news
		time.Sleep(20 * time.Second)
		source.change(func() { source.dark = true })
		list.until("dark", func(m told) bool { return m.Feed.Word == "dark" })
		for range 5 {
			time.Sleep(time.Minute)
			has(t, rowOf(t, page(t, server, "/"), "a"), `data-lock="held"`)
			has(t, page(t, server, "/analysis?id=a"), `data-lock="held"`, "as of "+known)
		}
		for _, s := range []*screen{list, one} {
			for len(s.lines) > 0 {
				if m := <-s.lines; len(m.Rows) != 0 || strings.Contains(m.Detail, "stale") || m.Feed.Word == "dark" && m.Feed.At != known+" UTC" {
					t.Errorf("told in the dark: %+v", m)
				}
			}
		}
		page(t, server, "/?q=old")
		for _, id := range source.reads {
			if id == "old" {
				t.Error("the store is asked for an older one although it is dark")
			}
		}
		source.change(func() { source.dark = false })
		source.put(heldBy("b", "w/2", 1, time.Hour))
		has(t, page(t, server, "/analysis?id=b"), `data-lock="free"`) // until the feed asks again
		has(t, page(t, server, "/analysis?id=b&did=unlock&done=booked"), `data-lock="held"`)
		m := list.until("light", func(m told) bool { return len(m.Rows) == 2 })
		has(t, m.Rows[0].HTML+m.Rows[1].HTML, `data-lock="stale"`)
	})
}

// The store was silent for half a minute before that was noticed.
func TestALockThatRanOutInTheSilenceBeforeTheDarkIsHeldAsFarAsIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(heldBy("a", "w/1", 1, 15300*time.Millisecond))
		s := watch(t, open(t, source, console.Options{}), "/events")
		s.until("all", rows("a"))
		time.Sleep(15100 * time.Millisecond) // it was asked at the 15th second
		source.change(func() { source.dark = true })
		m := s.until("dark", func(m told) bool { return m.Feed.Word == "dark" })
		if len(m.Rows) != 1 {
			t.Fatalf("told %+v", m)
		}
		has(t, m.Rows[0].HTML, `data-lock="held"`)
		time.Sleep(5 * time.Minute)
		if n := len(s.lines); n > 35 { // 300 s of 10 s, and what the store's failures say
			t.Errorf("told %d times in 5 minutes of dark, in which nothing happens", n)
		}
	})
}

func TestALockThatRanOutWhileTheStoreAnsweredStaysStaleInTheDark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(heldBy("a", "w/1", 1, 10*time.Second))
		server := open(t, source, console.Options{})
		s := watch(t, server, "/events")
		s.until("all", rows("a"))
		time.Sleep(40 * time.Second)
		source.change(func() { source.dark = true })
		s.until("dark", func(m told) bool { return m.Feed.Word == "dark" })
		has(t, page(t, server, "/"), `data-lock="stale"`)
	})
}

func TestARefusalIsNotCalledSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newBrittle(t)
		source.err = fmt.Errorf("a: %w", &console.Refusal{Words: "no permission", Err: errOdd})
		server := open(t, source, console.Options{})
		m := watch(t, server, "/events").until("dark", func(m told) bool { return m.Feed.Word == "dark" })
		has(t, m.Feed.Dark, "Firestore refuses: no permission since ", "; nothing is known yet")
		has(t, page(t, server, "/"), "Firestore refuses: no permission since ")
	})
}

// Without a word of the stream there is no time by which a lock could be judged.
func TestNothingIsShownAsHeldBeforeTheStreamHasSpoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := heldBy("stuck", "w/1", 1, -time.Hour)
		source := newBrittle(t, stuck)
		source.err = fmt.Errorf("a: %w", &console.Refusal{Words: "no permission", Err: errOdd})
		source.late = []console.Analysis{stuck.Analysis}
		server := open(t, source, console.Options{})
		watch(t, server, "/events").until("dark", func(m told) bool { return m.Feed.Word == "dark" })
		for _, target := range []string{"/", "/analysis?id=stuck"} {
			hasNot(t, page(t, server, target), `data-lock="held"`)
		}
	})
}

// slow is slim, and takes its time to find what is stuck.
type slow struct{ slim }

func (s slow) Overdue(ctx context.Context, limit int) ([]console.Analysis, error) {
	time.Sleep(time.Second)
	return s.slim.Overdue(ctx, limit)
}

func TestWhatIsStuckIsListedAlthoughItIsNotAmongTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck, newer := heldBy("stuck", "w/1", 1, -time.Hour), of("newer", "QUEUED")
		stuck.Updated = storeNow().Add(-time.Hour)
		source := newShelf(stuck, newer)
		source.late = []console.Analysis{stuck.Analysis}
		server := open(t, slow{slim{source, "stuck"}}, console.Options{})
		for query, want := range map[string]string{"": "stuck newer", "?lock=stale": "stuck", "?state=PROCESSING": "stuck", "?q=STUCK": "stuck"} {
			text := page(t, server, "/"+query)
			if got := strings.Join(ids(text), " "); got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
			has(t, text, `All <b>2</b>`, `stale <b>1</b>`, `id="missing" role="status" hidden`)
		}
		s := watch(t, server, "/events")
		s.until("all", rows("stuck", "newer"))
		time.Sleep(5 * time.Minute)
		for len(s.lines) > 0 {
			if m := <-s.lines; len(m.Rows) > 0 || m.Order != nil {
				t.Errorf("told again: %+v", m)
			}
		}
		source.change(func() { source.lateErr = &console.Refusal{Words: "an index is missing", Err: errOdd} })
		m := s.until("that they are missing", func(m told) bool { return m.Feed.Missing != "" })
		has(t, m.Feed.Missing, "Firestore refuses: an index is missing.")
		has(t, page(t, server, "/"), `data-id="stuck"`, m.Feed.Missing)
		source.change(func() { source.lateErr, source.late = nil, nil })
		s.until("that nothing is stuck", func(m told) bool { return len(m.Order) == 1 && m.Feed.Missing == "" })
	})
}

func TestWhatIsStuckAndFollowedStandsFirstUntilItIsUpdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := heldBy("z", "w/1", 1, -time.Hour)
		source := newShelf(of("a", "QUEUED"), stuck)
		source.late = []console.Analysis{stuck.Analysis}
		server := open(t, source, console.Options{})
		if got := strings.Join(ids(page(t, server, "/")), " "); got != "z a" {
			t.Errorf("listed are %s, want z a", got)
		}
		moved := stuck
		moved.Updated, moved.Status = storeNow(), "QUEUED"
		source.put(moved)
		synctest.Wait()
		text := page(t, server, "/")
		if got := strings.Join(ids(text), " "); got != "a z" {
			t.Errorf("listed are %s, want a z", got)
		}
		has(t, rowOf(t, text, "z"), "QUEUED")
	})
}

func TestWhatWasDeletedInTheDarkIsGoneInTheLight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(of("a", "QUEUED"))
		s := watch(t, open(t, source, console.Options{}), "/events")
		s.until("a", rows("a"))
		source.change(func() { source.dark = true })
		s.until("dark", func(m told) bool { return m.Feed.Word == "dark" })
		source.change(func() { clear(source.all); source.all["b"] = of("b", "QUEUED"); source.dark = false })
		if m := s.until("b", rows("b")); len(m.Order) != 1 {
			t.Errorf("listed are %d, want b alone", len(m.Order))
		}
	})
}

func TestWhatIsKnownIsForgottenWhenNobodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf(of("a", "QUEUED"))
		server := open(t, source, console.Options{})
		has(t, page(t, server, "/"), `data-id="a"`)
		time.Sleep(time.Hour)
		source.change(func() { source.dark = true })
		text := page(t, server, "/")
		has(t, text, "nothing is known yet")
		hasNot(t, text, `data-id="a"`)
	})
}

func TestAPageIsNotToldMoreOftenThanItCanShow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newShelf()
		s := watch(t, open(t, source, console.Options{}), "/events")
		s.until("nothing", func(m told) bool { return m.Empty })
		for i := range 1000 {
			source.put(of(fmt.Sprint(i%3), fmt.Sprint("S", i)))
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(s.lines); n < 30 || n > 42 { // 10 s of 250 ms
			t.Errorf("told %d times in 10 s", n)
		}
	})
}

func TestAStreamThatBreaksIsTriedLaterAndLaterAndThenAtOnceAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newBrittle(t, of("a", "QUEUED"))
		source.err = errOdd
		s := watch(t, open(t, source, console.Options{}), "/events")
		time.Sleep(5 * time.Minute)
		if n := source.tried(); n < 15 || n > 30 { // 1, 2, 4, 8, 16, 16 … s
			t.Errorf("tried %d times in 5 minutes", n)
		}
		whole, cut := context.WithCancel(t.Context())
		source.set(func() { source.err, source.whole = nil, whole })
		s.until("a", rows("a"))
		time.Sleep(time.Minute)
		before := source.tried()
		source.set(func() { source.whole = t.Context() })
		cut()
		time.Sleep(3 * time.Second)
		if n := source.tried() - before; n != 1 {
			t.Errorf("tried %d times in 3 s after it broke anew, want once", n)
		}
	})
}

func TestOneQuestionWithoutAnAnswerIsNotTheDark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newBrittle(t, of("a", "QUEUED"))
		s := watch(t, open(t, source, console.Options{}), "/events")
		s.until("a", rows("a"))
		for range 5 {
			source.set(func() { source.fails = 1 })
			time.Sleep(time.Minute)
		}
		for len(s.lines) > 0 {
			if m := <-s.lines; m.Feed.Word != "live" {
				t.Errorf("told %+v", m.Feed)
			}
		}
		if n := source.tried(); n != 1 {
			t.Errorf("followed %d times", n)
		}
	})
}
