package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// maxCodes is how many codes, analyses with uncertain acts, and crashed ones, the page of failures lists.
// It reads maxUncertain analyses with uncertain acts, and lists those with the oldest acts.
const maxCodes, maxUncertain = 50, 1000

// failuresPage is the page of the uncertain acts, and of the failures by code and line.
type failuresPage struct {
	frame
	Uncertain []row
	Crashed   []row // FAILED analyses come first
	Groups    []group
	Left      int   // the number of groups that are not shown
	LeftActs  int   // the number of analyses with uncertain acts that are not shown
	Rest      int64 // the number of failed analyses in no shown group
	Counted   live  // how old the Groups are
}

// group is a code with the lines that the messages of its newest analyses have.
type group struct {
	repo.Failure
	Key       string // identifies it on the page
	Cancelled bool   // operators have cancelled all of Newest
	Uncertain bool   // its acts may have been done: a requeue does not answer them
	Lines     []*line
	Last      row // its last updated analysis
}

// failed returns how many have failed, by which the groups are sorted.
func (g group) failed() int64 {
	if g.Cancelled {
		return 0
	}
	return g.N
}

// line is the headline of a message with the number of the analyses that have it.
type line struct {
	Text, Key          string // Key identifies the headline
	N                  int64
	Newest             row
	analysislock.Error // of Newest
}

// More reports whether the message has more than the headline.
func (l line) More() bool { return strings.TrimSpace(message(l.Message)) != headline(l.Message) }

// newGroup returns the group of one code. It counts the newest analyses by the headline of their
// message, and puts the most frequent headline first. Each headline links its newest analysis.
func (s *Server) newGroup(failure *repo.Failure, now time.Time) group {
	g := group{
		Failure: *failure, Key: key(failure.Code), Cancelled: failure.Code == analysislock.Cancelled,
		Uncertain: failure.Code == analysislock.ActUncertain, Last: s.newRow(&failure.Newest[0], now),
	}
	lines := map[string]*line{}

	for i := range failure.Newest { // the newest first
		a := &failure.Newest[i]
		g.Cancelled = g.Cancelled && a.Lock.FinishedBy == analysislock.Operator
		text := Topic(a.Cause().Message)
		if lines[text] == nil {
			lines[text] = &line{Text: text, Key: key(text), Newest: s.newRow(a, now), Error: *a.Cause()}
			g.Lines = append(g.Lines, lines[text])
		}
		lines[text].N++
	}

	slices.SortStableFunc(g.Lines, func(a, b *line) int { return cmp.Compare(b.N, a.N) })
	return g
}

// problems is what the page of failures lists one by one.
type problems struct {
	uncertain []analysislock.Analysis
	crashed   []analysislock.Analysis // with the code crashed, the last updated first
	readAt    time.Time
}

// failures is what the page of failures counts.
type failures struct {
	groups []repo.Failure
	hidden int   // the number of further groups
	all    int64 // the number of analyses that are FAILED, which are counted in all and by group
	readAt time.Time
}

// Reads returns about how many reads Firestore has billed for the counts of f.
func (f failures) Reads() int64 { return int64(1+len(f.groups)+f.hidden) + 2*f.all/1000 }

// uncertainSince returns when the first of the open acts of a began.
func uncertainSince(a *analysislock.Analysis) (first time.Time) {
	for _, name := range a.Acts.Open() {
		if begun := a.Acts[name].At; first.IsZero() || begun.Before(first) {
			first = begun
		}
	}
	return first
}

// problems reads the failures, the uncertain acts, and what crashed.
func (s *Server) problems(ctx context.Context) (p problems, err error) {
	if p.readAt, err = s.source.Now(ctx); err != nil {
		return p, err
	}
	if p.uncertain, err = s.source.Uncertain(ctx, maxUncertain); err != nil {
		return p, err
	}
	slices.SortStableFunc(p.uncertain, func(a, b analysislock.Analysis) int {
		return uncertainSince(&a).Compare(uncertainSince(&b))
	})

	p.crashed, _, _, err = s.source.Page(ctx, repo.Filter{Code: analysislock.Crashed}, "", maxCodes)
	return p, err
}

// failures counts the failures.
func (s *Server) failures(ctx context.Context) (f failures, err error) {
	if f.readAt, err = s.source.Now(ctx); err != nil {
		return f, err
	}
	counts, ctx := errgroup.WithContext(ctx)
	counts.Go(func() (err error) {
		f.all, err = s.source.Count(ctx, repo.Filter{Status: analysislock.Failed})
		return err
	})
	counts.Go(func() (err error) {
		f.groups, f.hidden, err = s.source.Failures(ctx, maxCodes)
		return err
	})
	err = counts.Wait()
	return f, err
}

// failed handles GET /failures.
func (s *Server) failed(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), maxWait)
	defer cancel()
	p := failuresPage{frame: s.frame(c, "Failures")}
	var counted reading
	var counting sync.WaitGroup
	count := func(ctx context.Context) (any, error) { return s.failures(ctx) }
	counting.Go(func() { counted = s.shared(ctx, "failures", 2*s.o.Every, count) })
	listed := s.shared(ctx, "problems", 2*s.o.Every, func(ctx context.Context) (any, error) { return s.problems(ctx) })
	counting.Wait()

	found, _ := listed.value.(problems)
	failed, _ := counted.value.(failures)
	refresh := counted.restLeft() // this page has no script
	if listed.busy != nil && !listed.fresh() || counted.busy != nil && !counted.fresh() {
		refresh = time.Second
	}
	if refresh > 0 {
		c.Response().Header().Set("Refresh", strconv.Itoa(1+int(refresh.Seconds())))
	}

	var now time.Time
	p.Live, now = listed.age(found.readAt)
	p.Counted, _ = counted.age(failed.readAt)
	p.Live.Problem = cmp.Or(p.Live.Problem, p.Counted.Problem)
	p.Left, p.LeftActs = failed.hidden, max(0, len(found.uncertain)-maxCodes)
	for i := range found.uncertain[:len(found.uncertain)-p.LeftActs] {
		r := s.newRow(&found.uncertain[i], now)
		r.Section = "uncertain" // its other acts are not shown
		p.Uncertain = append(p.Uncertain, r)
	}
	for i := range found.crashed {
		if r := s.newRow(&found.crashed[i], now); r.Crashes() != nil {
			p.Crashed = append(p.Crashed, r)
		}
	}
	slices.SortStableFunc(p.Crashed, func(a, b row) int { return cmp.Compare(a.Status, b.Status) })
	p.Rest = failed.all
	for i := range failed.groups {
		f := &failed.groups[i]
		p.Rest -= f.N
		p.Groups = append(p.Groups, s.newGroup(f, now))
	}
	slices.SortStableFunc(p.Groups, func(a, b group) int { return cmp.Compare(b.failed(), a.failed()) })
	return s.render(c, http.StatusOK, "failures", p)
}

// MaxBulk is how many analyses one request changes at most.
const MaxBulk = 5000

const (
	failuresPath = "/failures/requeue"
	bulkTimeout  = 20 * time.Second // after this time one request begins no further change
)

// bulkPage is the page before and after a change of all that a filter selects.
type bulkPage struct {
	frame
	Bulk   // the result of the dry run, or of the change
	Verb   verb
	Filter choice
	Text   string // the headline that Filter selects
	Action string // the address of the form
	Back   string // the address of the list
	Done   bool
	Left   int64  // the number of confirmed analyses that are not changed yet
	More   bool   // the form may change some of them
	Seen   string // identifies what the form confirms: the time and the number
	Books  bool
}

// all handles /all/requeue and /all/cancel, and /failures/requeue?code=. GET makes a dry run,
// and POST changes what was confirmed.
func (s *Server) all(v verb) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if r.Method != http.MethodPost {
			return s.bulk(c, v, time.Time{}, 0)
		}
		defer s.Track()() // a stop waits for the changes under way
		r.Body = http.MaxBytesReader(c.Response(), r.Body, maxForm)
		if foreign(r) {
			return foreignForm
		}

		var before, n int64
		if _, err := fmt.Sscanf(r.PostFormValue("seen"), "%d-%d", &before, &n); err != nil || n < 1 || before < 1 {
			return unconfirmed
		}
		return s.bulk(c, v, time.UnixMilli(before), n)
	}
}

// bulk changes the confirmed number of the analyses that the address selects and that were not updated
// since. It goes on until its time is up or the server stops, even if the operator leaves the page.
// Without a number it makes a dry run.
func (s *Server) bulk(c echo.Context, v verb, updatedBefore time.Time, confirmed int64) error {
	filter, err := s.chosen(c)
	switch {
	case err != nil:
		return err
	case c.Path() == failuresPath && filter.Code != "":
		filter = choice{State: analysislock.Failed, Code: filter.Code, Cause: true, Headline: c.QueryParam("headline")}
	case c.Path() == failuresPath || !filter.narrow():
		return noFilter
	}
	filter.After = ""
	dryRun, limit := confirmed == 0, int64(MaxBulk)
	if !dryRun {
		limit = min(confirmed, limit)
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), bulkTimeout)
	defer cancel()
	defer context.AfterFunc(s.work, cancel)()

	page, back := s.frame(c, v.Button+" all"), "/"+filter.query()
	which, text := Which{Filter: filter.at}, ""
	if filter.Headline != "" {
		which.Match = func(a *analysislock.Analysis) bool {
			why := a.Cause()
			if why == nil || key(Topic(why.Message)) != filter.Headline {
				return false
			}
			text = Topic(why.Message)
			return true
		}
	}
	result, err := s.o.Operator.ChangeAll(ctx, v.Name, which, page.Who, updatedBefore, int(limit), dryRun)
	if !dryRun {
		s.forget()
	}
	if err != nil {
		return refusalOf(err, back)
	}

	left := result.Matched
	if !dryRun {
		left = min(confirmed, left) - result.Changed
	}
	return s.render(c, http.StatusOK, "bulk", bulkPage{
		frame: page, Bulk: result, Verb: v, Filter: filter, Text: text, Action: c.Path() + filter.query(), Back: back,
		Done: !dryRun, Left: left, More: result.Changed > 0 && left > 0,
		Seen: fmt.Sprintf("%d-%d", result.Before.UnixMilli(), left), Books: s.o.Books,
	})
}
