package console_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/worker/console"
)

func TestAChangeIsNotMadeOfALockThatHasPassedOn(t *testing.T) {
	for name, tc := range map[string]struct{ was, is console.Whole }{
		"another owner and token":      {heldBy("a", "w/1", 3, time.Hour), heldBy("a", "w/2", 4, time.Hour)},
		"another token":                {heldBy("a", "w/1", 3, time.Hour), heldBy("a", "w/1", 4, time.Hour)},
		"another owner":                {heldBy("a", "w/1", 3, time.Hour), heldBy("a", "w/2", 3, time.Hour)},
		"a stale one that was renewed": {heldBy("a", "w/1", 3, -time.Minute), heldBy("a", "w/1", 3, time.Hour)},
		"one that has run out":         {heldBy("a", "w/1", 3, time.Hour), heldBy("a", "w/1", 3, -time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			source := newShelf(tc.was)
			s, h := writable(t, source)
			form := hidden(t, page(t, s, "/unlock?id=a"))
			source.put(tc.is)
			w := ask(t, s, http.MethodPost, "/unlock?id=a", form.Encode(), "Sec-Fetch-Site", "same-origin")
			if w.Code != http.StatusConflict {
				t.Errorf("%d", w.Code)
			}
			has(t, w.Body.String(), `id="changed"`, "It has changed since you looked", tc.is.Lock.Owner)
			h.want(t)
			again := ask(t, s, http.MethodPost, "/unlock?id=a", hidden(t, w.Body.String()).Encode(), "Sec-Fetch-Site", "same-origin")
			if again.Code != http.StatusSeeOther {
				t.Errorf("confirmed again: %d", again.Code)
			}
			h.want(t, "unlock a by operator-1")
			if h.seen != (console.Seen{Status: "PROCESSING", Grant: tc.is.Lock.Grant()}) {
				t.Errorf("unlocked is %+v, want what was seen", h.seen)
			}
		})
	}
}

// A worker in another language may leave the lock's token as it is.
func TestAChangeIsNotMadeOfAnotherStateThanThePageSaid(t *testing.T) {
	for _, verb := range []string{"unlock", "requeue"} {
		source := newShelf(of("a", "FAILED"))
		s, h := writable(t, source)
		form := hidden(t, page(t, s, "/"+verb+"?id=a"))
		source.put(of("a", "READY"))
		w := ask(t, s, http.MethodPost, "/"+verb+"?id=a", form.Encode(), "Sec-Fetch-Site", "same-origin")
		if w.Code != http.StatusConflict {
			t.Errorf("%s: %d", verb, w.Code)
		}
		has(t, w.Body.String(), `id="changed"`, "this one has changed nothing", "READY")
		h.want(t)
		if code, _, _ := confirmed(t, s, verb, "a"); code != http.StatusSeeOther || h.seen != (console.Seen{Status: "READY"}) {
			t.Errorf("%s, confirmed of what it is: %d, of %+v", verb, code, h.seen)
		}
	}
}

func TestASecondPressIsToldThatTheFirstHasDoneIt(t *testing.T) {
	for verb, want := range map[string]string{"unlock": "It is not locked now", "requeue": "It has changed since you looked"} {
		source := newShelf(heldBy("a", "w/1", 3, -time.Minute))
		s, h := writable(t, source)
		form := hidden(t, page(t, s, "/"+verb+"?id=a"))
		h.during = func(context.Context) {
			w := of("a", "QUEUED")
			w.Lock.Token = 3
			source.put(w)
		}
		for _, code := range []int{http.StatusSeeOther, http.StatusConflict} {
			w := ask(t, s, http.MethodPost, "/"+verb+"?id=a", form.Encode(), "Sec-Fetch-Site", "same-origin")
			if w.Code != code {
				t.Errorf("%s: %d, want %d", verb, w.Code, code)
			}
			if code == http.StatusConflict {
				has(t, w.Body.String(), want, "perhaps by your own press", "QUEUED", `href="/analysis?id=a"`)
				if submit := strings.Contains(w.Body.String(), "confirm-submit"); submit != (verb == "requeue") {
					t.Errorf("%s: a button to press once more: %v", verb, submit)
				}
			}
		}
		h.want(t, verb+" a by operator-1")
	}
}

func TestWhatIsLeftProcessingWithoutALockCanBeUnlocked(t *testing.T) {
	source := newShelf(heldBy("a", "w/1", 3, time.Hour))
	s, h := writable(t, source)
	text := page(t, s, "/unlock?id=a")
	source.put(of("a", "PROCESSING"))
	w := ask(t, s, http.MethodPost, "/unlock?id=a", hidden(t, text).Encode(), "Sec-Fetch-Site", "same-origin")
	has(t, w.Body.String(), "It has changed since you looked", "Nobody holds it.", "PROCESSING goes back to QUEUED")
	hasNot(t, w.Body.String(), "stays as it is")
	if code, _, _ := confirmed(t, s, "unlock", "a"); code != http.StatusSeeOther {
		t.Errorf("%d", code)
	}
	h.want(t, "unlock a by operator-1")
}

func TestALockThatPassesOnInTheVeryMomentIsAskedAboutAgain(t *testing.T) {
	source := newShelf(heldBy("a", "w/1", 3, time.Hour))
	s, h := writable(t, source)
	h.fail = fmt.Errorf("x: %w", lease.ErrConflict)
	h.during = func(context.Context) { source.put(heldBy("a", "w/2", 4, time.Hour)) }
	code, text, _ := confirmed(t, s, "unlock", "a")
	if code != http.StatusConflict {
		t.Errorf("%d", code)
	}
	has(t, text, "It has changed since you looked", "w/2")
}
