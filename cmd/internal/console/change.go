package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// Verb names what a change does; see the methods of analysislock.Locks.
type Verb string

// The changes. Their names are also the paths of their pages.
const (
	Unlock       Verb = "unlock"
	Requeue      Verb = "requeue"
	RequeueFresh Verb = "requeue-fresh" // deletes the checkpoint and the marked acts
	Cancel       Verb = "cancel"
	Resolve      Verb = "resolve"
	Delete       Verb = "delete" // not by the console
)

// Change is a change of one analysis. Only Resolve uses Act and Answer.
type Change struct {
	Verb
	ID     string
	Who    string             // the operator, for the log
	Seen   *analysislock.Seen // the change is made only in this state; nil: in any
	Act    string
	Answer analysislock.Answer
}

// StateOf returns the state of a as it was read.
func StateOf(a *analysislock.Analysis) *analysislock.Seen {
	return &analysislock.Seen{Status: a.Status, Grant: a.Lock.Grant()}
}

// Operator makes the changes.
type Operator interface {
	// Change makes a change, and logs it. It commits the change only if the analysis is still in
	// the state seen, and returns lease.ErrConflict otherwise. It may also return ErrNotBooked, ErrUnconfirmed,
	// or an error of worker.Documents. Change may be called concurrently.
	Change(ctx context.Context, c Change) (Delivery, error)
	// ChangeAll requeues or cancels up to limit analyses that w selects at the time updatedBefore, and
	// that were updated before it; zero: the store's present time. It skips an analysis that is
	// held, that has changed since it was listed, or that already is as it should be. When
	// ctx ends, it begins no other change, and returns the result so far. A dry run changes nothing,
	// and counts as Changed what would be changed.
	ChangeAll(
		ctx context.Context, verb Verb, w Which, who string, updatedBefore time.Time, limit int, dryRun bool,
	) (Bulk, error)
}

// Which selects the analyses that Filter finds and Match accepts. With a Match, only the first MaxBulk that Filter
// finds are read.
type Which struct {
	Filter func(now time.Time) repo.Filter
	Match  func(*analysislock.Analysis) bool // nil: it accepts all
}

// Bulk is the result of a change of many analyses.
type Bulk struct {
	Before                   time.Time
	Matched                  int64 // before the change
	Changed, Skipped, Failed int64
	Unconfirmed              int64 // of those that failed, with ErrUnconfirmed
}

// ErrUnconfirmed is the error of a change that may have been made: Firestore did not answer in time.
var ErrUnconfirmed = errors.New("not confirmed: the document may have changed")

// ErrNotBooked is the error of a change that is made, but whose delivery may not be booked: the queue
// refused it, or did not answer.
var ErrNotBooked = errors.New("the document changed, but may not be enqueued")

// Delivery is the result of the booking that goes with a change.
type Delivery string

// The results of a booking.
const (
	Booked    Delivery = "booked"
	NotNeeded Delivery = "not_needed" // the analysis is finished
	None      Delivery = "none"       // no queue is configured
)

var results = map[Delivery]string{
	Booked: "It is in the queue again.", NotNeeded: "It is finished, so nothing was enqueued.",
	None: "Nothing was enqueued: TASK_QUEUE is not set.",
}

// verb describes a change that has its own path.
type verb struct {
	Name   Verb
	Button string
	Past   string // the word for the finished change
}

var (
	requeue = verb{Requeue, "Requeue", "Requeued"}
	verbs   = []verb{
		{Unlock, "Unlock", "Unlocked"}, requeue, {Cancel, "Cancel", "Cancelled"}, {Resolve, "Resolve", "Resolved"},
	}
)

// notice describes the change that led to this page. It returns only fixed texts, because anybody
// can make the address.
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
	Act      act    // the act to resolve
	Answer   string // the answer that is chosen: done, not_done or empty
	Result   string // the result as the operator entered it
	Books    bool
	Problem  string // why the last confirmation changed nothing
	Action   string // the address of the form
	Back     string
}

// Fresh reports whether a requeue may begin anew.
func (p confirmPage) Fresh() bool {
	return p.Analysis.Resumable() && p.Analysis.OpenActs == 0 && p.Analysis.LockState != lockHeld
}

// Stays reports whether the change only records an answer, and runs nothing.
func (p confirmPage) Stays() bool {
	return p.Verb.Name == Resolve && Final(&p.Analysis.Analysis)
}

// Final reports whether a is READY or cancelled: Resolve opens only others again.
func Final(a *analysislock.Analysis) bool {
	return a.Closed() || a.Status == analysislock.Failed && a.Error != nil && a.Error.Code == analysislock.Cancelled
}

// confirm handles GET of a change: it shows what will happen.
func (s *Server) confirm(v verb) echo.HandlerFunc {
	return func(c echo.Context) error {
		p, err := s.confirmation(c, v)
		if err != nil {
			return err
		}
		return s.render(c, http.StatusOK, "confirm", p)
	}
}

// confirmation returns the page for the analysis, and the act, that the address names.
func (s *Server) confirmation(c echo.Context, v verb) (p confirmPage, err error) {
	id := c.QueryParam("id") // browsers change the line ends of a form field
	p = confirmPage{
		frame: s.frame(c, v.Button+" "+printable.Line(id)), Verb: v, Books: s.o.Books,
		Action: address("/"+string(v.Name), id), Back: address("/analysis", id),
	}
	a, err := s.read(c, s.source.Summary)
	if err == nil && a.Malformed != nil {
		err = lease.ErrMalformed
	}
	if err != nil {
		return p, refusalOf(err, p.Back)
	}
	p.Analysis = s.newRow(&a, a.ReadAt)
	if v.Name != Resolve {
		return p, nil
	}

	acts, name := p.Analysis.ActRows(), c.QueryParam("name")
	i := slices.IndexFunc(acts, func(a act) bool { return a.Name == name && a.Uncertain })
	if i < 0 {
		return p, refusalOf(analysislock.ErrNotUncertain, p.Back)
	}
	p.Act, p.Action = acts[i], p.Action+"&name="+url.QueryEscape(name)
	if c.Request().Header.Get("Sec-Fetch-Site") == "same-origin" { // a link in a mail chooses no answer
		p.Answer = c.QueryParam("answer")
	}
	return p, nil
}

// foreign reports whether the browser does not confirm that a form comes from this console.
func foreign(r *http.Request) bool {
	unproven := r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == ""
	return unproven || http.NewCrossOriginProtection().Check(r) != nil
}

const (
	maxForm       = 256 << 10       // bytes: the result of an act has up to 64 KiB
	changeTimeout = 7 * time.Second // shorter than a stop waits for it
)

// change handles POST of a change.
func (s *Server) change(v verb) echo.HandlerFunc {
	return func(c echo.Context) error {
		defer s.Track()() // a stop waits for it
		// The change is made even if the operator leaves the page during it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), changeTimeout)
		defer cancel()
		r := c.Request().WithContext(ctx)
		c.SetRequest(r)
		r.Body = http.MaxBytesReader(c.Response(), r.Body, maxForm)
		if foreign(r) {
			return foreignForm
		}

		p, err := s.confirmation(c, v)
		if err != nil {
			return err
		}
		if r.PostFormValue("seen") != p.Analysis.Seen() {
			return s.askAgain(c, &p)
		}
		change, err := p.confirmed(r)
		if err != nil {
			p.Problem = "Nothing was changed: " + err.Error() + "."
			p.Answer, p.Result = r.PostFormValue("answer"), r.PostFormValue("result")
			return s.render(c, http.StatusBadRequest, "confirm", p)
		}

		defer s.forget()
		booked, err := s.o.Operator.Change(ctx, change)
		switch {
		case errors.Is(err, lease.ErrConflict) && !errors.Is(err, ErrUnconfirmed): // it has changed since it was read
			if p, err = s.confirmation(c, v); err != nil {
				return err
			}
			return s.askAgain(c, &p)
		case errors.Is(err, ErrNotBooked):
			return refusal{http.StatusBadGateway, v.Past + ", but could not be enqueued; the console's log " +
				"has the reason. Continue to enqueue it: unlocking a free analysis does only that.",
				address("/unlock", change.ID)}
		case err != nil:
			return refusalOf(err, p.Back)
		}
		return c.Redirect(http.StatusSeeOther, s.o.Root+p.Back+"&did="+string(v.Name)+"&done="+string(booked))
	}
}

// confirmed returns the change that a form confirms.
func (p *confirmPage) confirmed(r *http.Request) (c Change, err error) {
	a := &p.Analysis.Analysis
	c = Change{Verb: p.Verb.Name, ID: a.ID, Who: p.Who, Seen: StateOf(a), Act: p.Act.Name}
	switch answer := r.PostFormValue("answer"); {
	case c.Verb == Requeue && r.PostFormValue("fresh") != "":
		c.Verb = RequeueFresh
	case c.Verb == Resolve && answer == "done":
		c.Answer, err = Done(r.PostFormValue("result"))
	case c.Verb == Resolve && answer != "not_done":
		err = errors.New("choose whether it was done")
	}
	return c, err
}

// Done returns the answer that an act was done, with its result in JSON.
func Done(result string) (analysislock.Answer, error) {
	if !json.Valid([]byte(result)) {
		return analysislock.Answer{}, errors.New("the result is not JSON")
	}
	return analysislock.Answer{Done: true, Result: json.RawMessage(strings.TrimSpace(result))}, nil
}

// askAgain shows the page of what has changed since it was confirmed.
func (s *Server) askAgain(c echo.Context, p *confirmPage) error {
	p.Problem = "It has changed since you looked, perhaps because you pressed twice: this time nothing was changed. " +
		"This is its state now."
	return s.render(c, http.StatusConflict, "confirm", p)
}
