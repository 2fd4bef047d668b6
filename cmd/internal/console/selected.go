package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

const (
	maxSelected     = 200     // as many analyses one form changes
	maxSelectedForm = 2 << 20 // bytes: an id has up to 1,500, and five times as many in a form, escaped twice
)

// MaxSelected returns how many analyses may be selected, for the script.
func (p *listPage) MaxSelected() int { return maxSelected }

// pick is an analysis that the operator has selected.
type pick struct {
	row
	Left string // why it is not changed, or not confirmed; empty: it is, or will be
	Note string // what went wrong after the change
}

// selectedPage is the page before and after a change of the selected analyses.
type selectedPage struct {
	frame
	Verb    verb
	Picks   []pick
	Change  int    // how many of them are, or will be, changed
	Running int    // how many of those run now
	Rest    []pick // those to look at: they are not changed, or not enqueued
	Done    bool
	Action  string // the address of the form
	Back    string // the address of the list
	Books   bool
}

// selected handles POST /selected/requeue and /selected/cancel. The form of the list names analyses; it is answered by
// a page that shows their states. The form of this page also has what was seen of each: only those are changed that
// still are as they were shown.
func (s *Server) selected(v verb) echo.HandlerFunc {
	return func(c echo.Context) error {
		defer s.Track()() // a stop waits for the changes under way
		r := c.Request()
		r.Body = http.MaxBytesReader(c.Response(), r.Body, maxSelectedForm)
		if foreign(r) {
			return foreignForm
		}
		if err := r.ParseForm(); err != nil {
			return tooManySelected
		}
		ids, seen := unescaped(r.PostForm["id"]), r.PostForm["seen"]
		back, err := s.chosen(c)
		switch {
		case err != nil:
			return err
		case len(ids) == 0:
			return noneSelected
		case len(ids) > maxSelected:
			return tooManySelected
		case len(seen) > 0 && len(seen) != len(ids):
			return unconfirmed
		}

		p := selectedPage{
			frame: s.frame(c, v.Button+" selected"), Verb: v, Done: len(seen) > 0, Books: s.o.Books,
			Action: "/selected/" + string(v.Name) + back.query(), Back: "/" + back.query(),
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), bulkTimeout)
		defer cancel()
		defer context.AfterFunc(s.work, cancel)()
		if p.Done {
			defer s.forget()
		}
		p.Picks = s.picks(ctx, v.Name, ids, seen, p.Who)
		leftLast := func(a, b pick) int { return cmp.Compare(a.Left, b.Left) } // what is left alone comes last
		slices.SortStableFunc(p.Picks, leftLast)
		for i := range p.Picks {
			pick := &p.Picks[i]
			if pick.Left+pick.Note != "" {
				p.Rest = append(p.Rest, *pick)
			}
			if pick.Left == "" {
				p.Change++
				if pick.LockState == lockHeld {
					p.Running++
				}
			}
		}
		return s.render(c, http.StatusOK, "selected", p)
	}
}

// unescaped returns the ids of a form; see row.FormID. An id that is no FormID is no analysis's.
func unescaped(fields []string) (ids []string) {
	for _, field := range fields {
		id, _ := url.QueryUnescape(field)
		ids = append(ids, id)
	}
	return ids
}

// picks reads the analyses with these ids, eight at a time, and changes each that still is as it was seen; without
// seen, it changes none. It begins no other change when ctx ends, or after a delivery that could not be booked.
func (s *Server) picks(ctx context.Context, verb Verb, ids, seen []string, who string) []pick {
	all := make([]pick, len(ids))
	uninterrupted := context.WithoutCancel(ctx)
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(8)
	var mu sync.Mutex
	listed := map[string]bool{}
	for i, id := range ids {
		reads.Go(func() error {
			if ctx.Err() != nil {
				all[i] = s.unread(id, "Not tried: time was up, or an earlier change could not be enqueued.")
				return nil
			}
			mu.Lock()
			twice := listed[id]
			listed[id] = true
			mu.Unlock()
			if twice {
				all[i] = s.unread(id, "It is selected twice.")
				return nil
			}

			once, cancel := context.WithTimeout(uninterrupted, changeTimeout)
			defer cancel()
			all[i] = s.pick(once, verb, id)
			if seen == nil {
				return nil
			}
			return s.changePick(once, &all[i], Change{Verb: verb, ID: id, Who: who}, seen[i])
		})
	}
	_ = reads.Wait() // the picks have the errors
	return all
}

// unread returns a pick that is neither read nor changed.
func (s *Server) unread(id, why string) pick {
	return pick{row: s.newRow(&analysislock.Analysis{ID: id}, time.Time{}), Left: why}
}

// pick reads the analysis id, and says why verb does not change it.
func (s *Server) pick(ctx context.Context, verb Verb, id string) pick {
	a, err := s.source.Summary(ctx, id)
	if err != nil {
		return s.unread(id, refusalOf(err, "").message)
	}
	p := pick{row: s.newRow(&a, a.ReadAt)}
	switch {
	case a.Malformed != nil:
		p.Left = refusalOf(lease.ErrMalformed, "").message
	case verb == Cancel && a.Finished():
		p.Left = "It has ended."
	case verb == Cancel:
	case p.LockState == lockHeld:
		p.Left = "It runs. Cancel it first."
	case a.Closed():
		p.Left = "It has finished. You can requeue it on its page."
	case a.OpenActs > 0:
		p.Left = "It has a side effect that may have happened. Resolve that first, on its page."
	}
	return p
}

// changePick makes the change if p still is as it was seen. Its error stops further changes.
func (s *Server) changePick(ctx context.Context, p *pick, change Change, seen string) error {
	switch {
	case p.ReadAt.IsZero(): // it could not be read, which p says
		return nil
	case seen != p.Seen():
		p.Left = changedSince
		return nil
	case p.Left != "":
		return nil
	}
	change.Seen = StateOf(&p.Analysis)
	_, err := s.o.Operator.Change(ctx, change)
	switch {
	case errors.Is(err, ErrNotBooked):
		p.Note = "It is changed, but could not be enqueued. Unlock it on its page to enqueue it."
		return err
	case errors.Is(err, lease.ErrConflict) && !errors.Is(err, ErrUnconfirmed):
		p.Left = changedSince
	case err != nil:
		p.Left = refusalOf(err, "").message
	}
	return nil
}

const changedSince = "It has changed since you looked."
