package console

import (
	"cmp"
	"context"
	"slices"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

const (
	recently  = 3 * time.Hour // as far back as the backlog's plot shows
	maxAlarms = 50            // analyses that are read for each alarm
	maxCauses = 5             // lines of the first page
	maxKnown  = 20            // codes to choose from
)

// alarms is what the first page reads for its section of what needs attention, apart from the stuck ones.
type alarms struct {
	uncertain []analysislock.Analysis
	failed    []analysislock.Analysis // recently, the last updated first
	more      bool                    // more have failed recently than were read
	readAt    time.Time
}

// alarms reads up to maxAlarms uncertain analyses, and as many that failed recently.
func (s *Server) alarms(ctx context.Context) (found alarms, err error) {
	if found.readAt, err = s.source.Now(ctx); err != nil {
		return found, err
	}
	if found.uncertain, err = s.source.Uncertain(ctx, maxAlarms); err != nil {
		return found, err
	}
	f := repo.Filter{Status: analysislock.Failed, Since: found.readAt.Add(-recently)}
	var next string
	found.failed, next, _, err = s.source.Page(ctx, f, "", maxAlarms)
	found.more = next != ""
	return found, err
}

// latest returns a function that returns the newer reading of an analysis: a, or the one in v.
func (v *view) latest() func(a *analysislock.Analysis) *analysislock.Analysis {
	read := map[string]*analysislock.Analysis{}
	for _, list := range [][]analysislock.Analysis{v.others, v.stuck, v.waiting, v.running} {
		for i := range list {
			read[list[i].ID] = &list[i]
		}
	}
	return func(a *analysislock.Analysis) *analysislock.Analysis { return cmp.Or(read[a.ID], a) }
}

// stillUncertain returns the uncertain analyses that v does not show to be answered or to run again.
func (found *alarms) stillUncertain(v *view) (all []analysislock.Analysis) {
	latest := v.latest()
	for i := range found.uncertain {
		if a := latest(&found.uncertain[i]); a.OpenActs > 0 && !lease.Held(a.Lock, a.ReadAt) {
			all = append(all, *a)
		}
	}
	return all
}

// attention is what needs attention beside the uncertain and the stuck analyses: why analyses failed recently.
type attention struct {
	Causes  []cause // the most frequent first
	Left    int     // the number of causes that are not shown
	Failed  int64   // how many have failed recently
	More    bool    // there may be more than Failed, which were not read
	Problem string  // why it may be incomplete
}

// none reports whether a has nothing to show.
func (a attention) none() bool { return len(a.Causes) == 0 && a.Problem == "" && !a.More }

// cause is a code and the headline of a message, with the number of recent failures that have both.
type cause struct {
	Key, Code, Text string
	N               int64
	Newest          row
}

// attention groups what has failed recently by its cause. It leaves out uncertain analyses, which are listed, what
// an operator has cancelled, and what v shows to be open again.
func (s *Server) attention(found *alarms, v *view, now time.Time) attention {
	p, latest, groups := attention{More: found.more}, v.latest(), map[string]*cause{}
	var order []*cause
	for i := range found.failed { // the newest first
		a := latest(&found.failed[i])
		why := a.Cause()
		if a.Status != analysislock.Failed || a.OpenActs > 0 || why == nil || why.Code == analysislock.Cancelled {
			continue
		}
		p.Failed++
		text := Topic(why.Message)
		id := key(why.Code + "\n" + text)
		if groups[id] == nil {
			groups[id] = &cause{Key: id, Code: why.Code, Text: text, Newest: s.newRow(a, now)}
			order = append(order, groups[id])
		}
		groups[id].N++
	}

	slices.SortStableFunc(order, func(a, b *cause) int { return cmp.Compare(b.N, a.N) })
	p.Left = max(0, len(order)-maxCauses)
	for _, c := range order[:len(order)-p.Left] {
		p.Causes = append(p.Causes, *c)
	}
	return p
}

// codes returns some codes to choose from. It waits for nothing: a page without them is complete.
func (s *Server) codes(ctx context.Context) []string {
	ended, end := context.WithTimeout(ctx, maxWait)
	end()
	r := s.shared(ended, "codes", 16*s.o.Every, func(ctx context.Context) (any, error) {
		return s.source.Codes(ctx, maxKnown)
	})
	codes, _ := r.value.([]string)
	return codes
}
