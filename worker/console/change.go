package console

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/lease"
	"taskguard/worker/printable"
)

// verb is a change that an operator may make.
type verb struct {
	Name string // also its path
	Does string // the button
	Past string
	do   func(o Operator, ctx context.Context, id, who string, seen Seen) (Delivery, error)
}

var verbs = []verb{
	{"unlock", "Unlock", "Unlocked", Operator.Unlock},
	{"requeue", "Requeue", "Requeued", Operator.Requeue},
}

// Seen is what an analysis was when a change of it was confirmed.
type Seen struct {
	Status string
	Grant  lease.Grant
}

// Operator makes the changes, and leaves behind in a log that who did. Each is made
// of what was seen alone: of anything else is lease.ErrConflict, in the commit.
// Other errors are those of Source.Get, and for Requeue *lease.HeldError while
// locked. Its methods may be called concurrently.
type Operator interface {
	Unlock(ctx context.Context, id, who string, seen Seen) (Delivery, error)
	Requeue(ctx context.Context, id, who string, seen Seen) (Delivery, error)
}

// Delivery is what became of the booking that goes with a change.
type Delivery string

// What a change may answer.
const (
	Booked    Delivery = "booked"
	NotNeeded Delivery = "not_needed" // it is finished
	None      Delivery = "none"       // no queue is named
	Failed    Delivery = "failed"     // the analysis is changed all the same; why is in the Operator's log
)

var outcome = map[Delivery]string{
	Booked: "A delivery is booked.", NotNeeded: "It is finished and needs no delivery.",
	None: "No delivery is booked, as no queue is named: TASK_QUEUE is not set.",
}

// done says what the change was that has led to this page. The words are ours,
// whoever has written the address.
func done(c echo.Context) string {
	for _, v := range verbs {
		if said := outcome[Delivery(c.QueryParam("done"))]; said != "" && c.QueryParam("did") == v.Name {
			return v.Past + ". " + said
		}
	}
	return ""
}

// confirmation is the page before a change.
type confirmation struct {
	frame
	Verb     verb
	Analysis shown
	Books    bool
	Changed  bool // it is not what it was when this page was shown
	Back     string
}

// Over reports whether there is nothing left to unlock.
func (p confirmation) Over() bool {
	return p.Changed && p.Verb.Name == "unlock" && p.Analysis.Lock == lockFree && p.Analysis.Kind != "processing"
}

// closed refuses changes where there is no Operator.
func (s *Server) closed() error {
	if s.o.Operator != nil {
		return nil
	}
	return readOnly
}

// confirm is GET /unlock and /requeue: what will happen.
func (s *Server) confirm(v verb) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := s.closed(); err != nil {
			return err
		}
		id := c.QueryParam("id")
		w, err := s.changeable(c, id)
		if err != nil {
			return refused(err, address("/analysis", id))
		}
		return s.ask(c, v, w, false)
	}
}

// ask asks for a confirmation; again where the analysis has changed since it was asked.
func (s *Server) ask(c echo.Context, v verb, w Whole, changed bool) error {
	p := confirmation{
		frame: s.frame(c, v.Does+" "+printable.Line(w.ID)), Verb: v, Books: s.o.Books,
		Changed: changed, Back: address("/analysis", w.ID),
	}
	p.Analysis = judged(w)
	code := http.StatusOK
	if changed {
		code = http.StatusConflict
	}
	return s.render(c, code, "confirm", p)
}

// maxForm bounds a form, in bytes.
const maxForm = 4 << 10

// change is POST /unlock and /requeue.
func (s *Server) change(v verb) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := s.closed(); err != nil {
			return err
		}
		defer s.Pass()() // a stop waits for it
		// Whoever leaves the page in the middle of it has confirmed it all the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), changeTimeout)
		defer cancel()
		r := c.Request().WithContext(ctx)
		c.SetRequest(r)
		r.Body = http.MaxBytesReader(c.Response(), r.Body, maxForm)
		id := c.QueryParam("id") // a field would not keep each line end as it is
		back := address("/analysis", id)
		if !sameOrigin(r) {
			return foreignForm.to(back)
		}
		was, err := s.changeable(c, id)
		if err != nil {
			return refused(err, back)
		}
		if r.PostFormValue("lock") != judged(was).Seen() {
			return s.ask(c, v, was, true)
		}
		return s.make(c, v, was)
	}
}

// make makes a change that was confirmed of what was.
func (s *Server) make(c echo.Context, v verb, was Whole) error {
	id, back := was.ID, address("/analysis", was.ID)
	who, _ := c.Get(whoKey).(string)
	booked, err := v.do(s.o.Operator, c.Request().Context(), id, who, Seen{was.Status, was.Lock.Grant()})
	if errors.Is(err, lease.ErrConflict) { // since it was read
		if was, err = s.changeable(c, id); err == nil {
			return s.ask(c, v, was, true)
		}
	}
	switch {
	case err != nil:
		return refused(err, back)
	case booked == Failed:
		return unbooked.saying(v.Past + unbooked.message).to(address("/unlock", id))
	}
	return c.Redirect(http.StatusSeeOther, address("/analysis", id, "did", v.Name, "done", string(booked)))
}

// changeTimeout bounds a change, and the reading before it: it ends before a stop has no more time for it.
const changeTimeout = 7 * time.Second

// judged is w as it is shown now, to who may change it.
func judged(w Whole) shown {
	return show(&entry{Analysis: w.Analysis}, w.now(), true)
}

// Seen names, in a form, what its confirmation is about: the state, whose lock, and
// what that was. A stale one that its owner has renewed is another.
func (s shown) Seen() string {
	return strconv.FormatInt(s.Token, 10) + "-" + key(s.Owner) + "-" + s.Lock + "-" + key(s.State)
}

// Lines is the message for people to read, line by line.
func (f *Failure) Lines() string { return printable.Lines(f.Message) }
