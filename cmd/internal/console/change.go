package console

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// Change is a change that an operator may make.
type Change string

// The changes; see the methods of analysislock.Locks.
const (
	Unlock       Change = "unlock"
	Requeue      Change = "requeue"
	RequeueFresh Change = "requeue-fresh" // deletes the checkpoint
	Cancel       Change = "cancel"
)

// verb describes a change that has its own path.
type verb struct {
	Name   Change // also its path
	Button string
	Past   string // of the notice after the change
}

var (
	requeue = verb{Requeue, "Requeue", "Requeued"}
	verbs   = []verb{{Unlock, "Unlock", "Unlocked"}, requeue, {Cancel, "Cancel", "Cancelled"}}
)

// Operator makes the changes.
type Operator interface {
	// Change makes a change, and logs it with the name who. It commits the change only if
	// the analysis is still in the state seen, and returns lease.ErrConflict otherwise. Other
	// errors are those of Source.Get, for a requeue *lease.HeldError while locked, and for
	// Cancel lease.ErrFinished. Change may be called concurrently.
	Change(ctx context.Context, what Change, id, who string, seen analysislock.Seen) (Delivery, error)
	// ChangeAll requeues or cancels up to limit analyses that f selects at the time last.Before and
	// that were updated before it; zero: the store's present time. It begins after those that the
	// change with the result last has handled. It skips an analysis that is
	// held, or has changed since it was listed, and one that the change would not change. When
	// ctx ends, it begins no other, and returns the result so far. A dry run changes nothing,
	// and counts as Changed what would be changed.
	ChangeAll(
		ctx context.Context, what Change, f func(now time.Time) repo.Filter, who string,
		last Bulk, limit int, dryRun bool,
	) (Bulk, error)
}

// Bulk is the result of a change of many analyses.
type Bulk struct {
	Before                   time.Time
	After                    string // where the next change begins; empty: with the first one
	Matched                  int64  // before the change
	Changed, Skipped, Failed int64
}

// Delivery is the result of the booking that goes with a change.
type Delivery string

// The results of a booking.
const (
	Booked    Delivery = "booked"
	NotNeeded Delivery = "not_needed" // the analysis is finished
	None      Delivery = "none"       // no queue is configured
	Failed    Delivery = "failed"     // the analysis is changed; the Operator's log has the reason
)

var results = map[Delivery]string{
	Booked: "A delivery is booked.", NotNeeded: "It is finished and needs no delivery.",
	None: "No delivery is booked, because no queue is configured: TASK_QUEUE is not set.",
}

// notice describes the change that led to this page. Its texts are fixed, since the
// address may come from anywhere.
func notice(c echo.Context) string {
	for _, v := range verbs {
		if result := results[Delivery(c.QueryParam("done"))]; result != "" && c.QueryParam("did") == string(v.Name) {
			return v.Past + ". " + result
		}
	}
	return ""
}

// confirmPage is the page before a change.
type confirmPage struct {
	frame
	Verb     verb
	Analysis row
	Books    bool
	Changed  bool // since an earlier confirmation page
	Back     string
}

// confirm handles GET /unlock, /requeue and /cancel: it shows what will happen.
func (s *Server) confirm(v verb) echo.HandlerFunc {
	return func(c echo.Context) error {
		w, err := s.changeable(c)
		if err != nil {
			return refused(err, address("/analysis", c.QueryParam("id")))
		}
		return s.ask(c, v, &w, false)
	}
}

// changeable reads the analysis. It returns lease.ErrMalformed if the lock is unreadable.
func (s *Server) changeable(c echo.Context) (Detail, error) {
	w, err := s.read(c, c.QueryParam("id"), false)
	if err == nil && w.Malformed != nil {
		err = lease.ErrMalformed
	}
	return w, err
}

// ask shows the confirmation page. changed reports that the analysis has changed since an
// earlier one.
func (s *Server) ask(c echo.Context, v verb, w *Detail, changed bool) error {
	p := confirmPage{
		frame: s.frame(c, v.Button+" "+printable.Line(w.ID)), Verb: v, Analysis: s.row(w), Books: s.o.Books,
		Changed: changed, Back: address("/analysis", w.ID),
	}
	code := http.StatusOK
	if changed {
		code = http.StatusConflict
	}
	return s.render(c, code, "confirm", p)
}

// foreign reports whether the browser does not confirm that a form comes from this console.
func foreign(r *http.Request) bool {
	unproven := r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == ""
	return unproven || http.NewCrossOriginProtection().Check(r) != nil
}

const (
	maxForm       = 4 << 10         // bytes
	changeTimeout = 7 * time.Second // shorter than a stop waits for it
)

// change handles POST /unlock, /requeue and /cancel.
func (s *Server) change(v verb) echo.HandlerFunc {
	return func(c echo.Context) error {
		defer s.Track()() // a stop waits for it
		// The change is made even if the operator leaves the page during it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), changeTimeout)
		defer cancel()
		r := c.Request().WithContext(ctx)
		c.SetRequest(r)
		r.Body = http.MaxBytesReader(c.Response(), r.Body, maxForm)

		id := c.QueryParam("id") // browsers change the line ends of a form field
		back := address("/analysis", id)
		if foreign(r) {
			return refusal{foreignForm.code, foreignForm.message, back}
		}

		seen, err := s.changeable(c)
		if err != nil {
			return refused(err, back)
		}
		if r.PostFormValue("lock") != s.row(&seen).Seen() {
			return s.ask(c, v, &seen, true)
		}

		what := v.Name
		if what == Requeue && r.PostFormValue("fresh") != "" {
			what = RequeueFresh
		}
		who, _ := c.Get(whoKey).(string)
		defer s.forget()
		state := analysislock.Seen{Status: seen.Status, Grant: seen.Lock.Grant()}
		booked, err := s.o.Operator.Change(ctx, what, id, who, state)
		if errors.Is(err, lease.ErrConflict) { // it has changed since it was read
			if seen, err = s.changeable(c); err == nil {
				return s.ask(c, v, &seen, true)
			}
		}

		switch {
		case err != nil:
			return refused(err, back)
		case booked == Failed:
			return refusal{unbooked.code, v.Past + unbooked.message, address("/unlock", id)}
		}
		return c.Redirect(http.StatusSeeOther, s.o.Root+back+"&did="+string(v.Name)+"&done="+string(booked))
	}
}
