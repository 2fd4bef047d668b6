package repo

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"cloud.google.com/go/firestore"
	"golang.org/x/sync/errgroup"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Active reads three lists of analyses, each of up to limit, without inputs and results:
// those whose lock has not expired; those whose NextAttemptAt is in the future; and those
// that are stuck. A stuck analysis is QUEUED or PROCESSING and not locked. Its NextAttemptAt, if any,
// and its last update are more than one TTL and two minutes ago, so a recovery each minute would have
// marked it; or its updatedAt is not lease.Credible. Each list is sorted by the time that selects it:
// the lock's expiry, NextAttemptAt or updatedAt. Numbers come first, then Timestamps, then strings.
//
// Active also returns Firestore's time before the reading. Malformed is set as by Page. More
// than limit waiting analyses may hide a stuck one. It makes one read and three queries,
// each within 15 s. It returns the errors of Orphaned, and needs its index.
func (a *Analyses) Active(ctx context.Context, limit int) (
	running, waiting, stuck []analysislock.Analysis, at time.Time, err error,
) {
	if at, err = a.documents.now(ctx); err != nil {
		return nil, nil, nil, at, err
	}

	list := func(q firestore.Query, field string, limit int) (found []analysislock.Analysis) {
		if err == nil {
			q = q.OrderBy(field, firestore.Asc).Limit(limit).Select(a.codec.summary()...)
			found, err = a.match(ctx, "find active analyses", q, limit, nil)
		}
		return found
	}
	all := a.documents.collection.Query
	running = list(anyOf(all, timeIs("lockExpiresAt", ">", at)), "lockExpiresAt", limit)
	waiting = list(anyOf(all, timeIs("nextAttemptAt", ">", at)), "nextAttemptAt", limit)
	stuck = list(a.stale(at.Add(-a.stuckAfter()), at), "updatedAt", limit+len(waiting)) // it also finds waiting ones

	stuck = slices.DeleteFunc(stuck, func(d analysislock.Analysis) bool {
		return d.Malformed != nil || !d.Orphaned(a.stuckAfter())
	})
	return running, waiting, stuck[:min(limit, len(stuck))], at, err
}

// stuckAfter returns the time without an update after which an analysis is stuck.
func (a *Analyses) stuckAfter() time.Duration { return a.TTL() + analysislock.StuckAfter }

// Count returns the number of analyses that f selects, within 15 s. A Filter that compares no
// more than the Status also selects analyses without UpdatedAt. Firestore counts, and bills
// one read for a thousand. It returns the errors of Page.
func (a *Analyses) Count(ctx context.Context, f Filter) (int64, error) {
	if err := f.check(); err != nil {
		return 0, err
	}
	q := a.withStatus(f.Status)
	if f != (Filter{Status: f.Status}) {
		q = a.selected(&f)
	}
	return count(ctx, q)
}

// Uncertain reads, without inputs and results, up to limit analyses with an act that has started
// and is not done, and whose lock is not held: it may have been done. Malformed is set as
// by Page. It makes one query, within 15 s. It returns the errors of Page.
func (a *Analyses) Uncertain(ctx context.Context, limit int) ([]analysislock.Analysis, error) {
	q := a.documents.collection.Where(openActs, ">", 0).Select(a.codec.mask()...)
	return a.match(ctx, "list acts", q, limit, func(_ reading, d *analysislock.Analysis) bool {
		return d.OpenActs > 0 && !lease.Held(d.Lock, d.ReadAt)
	})
}

// abandonedAfter is the time, besides the TTL, that a caller of Do has to call again.
const abandonedAfter = 10 * time.Minute

// Abandoned is like Uncertain, of the unfinished records of Options.KeepAll with an act, done or
// not, whose lock is not held and whose last update is more than one TTL and ten minutes ago.
// Only their callers can finish them, and have not come back.
func (a *Analyses) Abandoned(ctx context.Context, limit int) ([]analysislock.Analysis, error) {
	q := a.documents.collection.Where(unfinishedActs, ">", 0).Select(a.codec.mask()...)
	return a.match(ctx, "list acts", q, limit, func(_ reading, d *analysislock.Analysis) bool {
		return len(d.Acts) > 0 && lease.Orphaned(d.Lock, d.ReadAt) &&
			lease.Late(d.UpdatedAt, d.ReadAt, a.TTL()+abandonedAfter)
	})
}

// maxUnread is the number of documents without a time that can be read that a query of oldest passes
// over. Recovery repeats the query each minute.
const maxUnread = 3000

// ErrUnread reports that a query has passed over so many documents that it has not read all others.
var ErrUnread = errors.New("repo: more than 3,000 unfinished analyses have a time that cannot be read")

// Unfinished reads, without inputs and results, up to limit analyses that are QUEUED or
// PROCESSING, the oldest update first; Malformed is set as by Page. It omits those without an
// updatedAt that can be read; see Unfound. It makes one or two queries for each type of updatedAt,
// each within 15 s.
//
// It returns the errors of Orphaned, and needs its index. ErrUnread comes with the analyses that it could read.
func (a *Analyses) Unfinished(ctx context.Context, limit int) ([]analysislock.Analysis, error) {
	updated := func(d *analysislock.Analysis) time.Time { return d.UpdatedAt }
	return a.oldest(ctx, limit, "updatedAt", time.UnixMilli(0), updated)
}

// maxParkedBefore is the number of parked analyses that OldestUnfinished passes over. Recovery calls it each minute.
const maxParkedBefore = 300

// CountParked returns how many analyses wait for a slot of their key, as Count does.
func (a *Analyses) CountParked(ctx context.Context) (int64, error) {
	return count(ctx, a.documents.collection.Where("parkedAt", ">", ""))
}

// OldestUnfinished reads, without input and result, the analysis that is QUEUED or
// PROCESSING and has the earliest createdAt. found is false if there is none. ReadAt is
// Firestore's time of the reading. Malformed is set as by Page. It does not find an analysis
// without a createdAt that can be read, or with one before 1971, such as 0. It passes over parked analyses; if
// the oldest 300 are parked, found is false.
//
// It makes one query for each type of createdAt, of one document, and another of up to 3,000 if the
// createdAt of that one cannot be read, each within 15 s. If the oldest is parked, it makes them once more, of up to
// 300. It needs the index of status and createdAt. It returns the errors of Orphaned, or ErrUnread
// after about 3,000 such documents of one type: the oldest is unknown.
func (a *Analyses) OldestUnfinished(ctx context.Context) (oldest analysislock.Analysis, found bool, err error) {
	created := func(d *analysislock.Analysis) time.Time { return d.CreatedAt }
	parked := func(d analysislock.Analysis) bool { return !d.ParkedAt.IsZero() }
	all, err := a.oldest(ctx, 1, "createdAt", earliest, created)
	if err == nil && slices.ContainsFunc(all, parked) {
		all, err = a.oldest(ctx, maxParkedBefore, "createdAt", earliest, created)
		all = slices.DeleteFunc(all, parked)
	}
	if err != nil || len(all) == 0 {
		return oldest, false, err
	}
	return all[0], true, nil
}

// oldest reads up to limit unfinished analyses that have a time in a field, from first on, the earliest
// first. at returns that time. With ErrUnread, it also returns the analyses that it could read.
//
// A query for each type of the field has a lower bound, which restricts it to that type. Without the
// bound, Firestore sorts all numbers before all Timestamps, and these before all strings, so that
// within a limit one type could leave no room for another.
func (a *Analyses) oldest(ctx context.Context, limit int, field string, first time.Time,
	at func(d *analysislock.Analysis) time.Time,
) (all []analysislock.Analysis, err error) {
	q := a.unfinished().OrderBy(field, firestore.Asc).Select(a.codec.summary()...)
	for _, lowest := range storedForms(first) {
		found, readErr := a.readable(ctx, limit, q.Where(field, ">=", lowest), at)
		if err = cmp.Or(readErr, err); err != nil && !errors.Is(err, ErrUnread) {
			return nil, err
		}
		all = append(all, found...)
	}

	slices.SortStableFunc(all, func(x, y analysislock.Analysis) int { return at(&x).Compare(at(&y)) })
	return all[:min(limit, len(all))], err
}

// readable reads the first limit analyses of q for which at returns a time. Those without one leave
// room for others. ErrUnread: they are more than maxUnread.
func (a *Analyses) readable(ctx context.Context, limit int, q firestore.Query,
	at func(d *analysislock.Analysis) time.Time,
) (found []analysislock.Analysis, err error) {
	for _, size := range []int{limit, limit + maxUnread} { // the second query is needed where some have none
		n := 0
		found, err = a.match(ctx, "list unfinished analyses", q.Limit(size), limit,
			func(_ reading, d *analysislock.Analysis) bool {
				n++
				return !at(d).IsZero()
			})
		if err != nil || n < size || len(found) == limit {
			return found, err
		}
	}
	return found, ErrUnread
}

// maxUnfoundReads is the number of documents that each of the two queries of Unfound reads.
const maxUnfoundReads = 10_000

// Unfound reads status, times, attempts and lock of up to limit analyses that recovery does not
// find, although no other program has set their status: QUEUED or PROCESSING analyses without a
// readable updatedAt, and analyses without a status that were never acquired.
// Malformed is set as by Page. It makes a query and three counts, and another query if the
// counts show that analyses have no status, each within 15 s. It returns the errors of Page.
func (a *Analyses) Unfound(ctx context.Context, limit int) (found []analysislock.Analysis, err error) {
	f, all := a.codec.fields, a.documents.collection
	unfound := func(q firestore.Query, limit int, keep func(reading, *analysislock.Analysis) bool) (
		[]analysislock.Analysis, error,
	) {
		q = q.OrderBy(firestore.DocumentID, firestore.Asc).Limit(maxUnfoundReads).
			Select(append([]string{"createdAt", "attempts"}, a.orphanFields()...)...)
		return a.match(ctx, "find analyses that recovery does not find", q, limit, keep)
	}
	found, err = unfound(a.unfinished(), limit, func(_ reading, d *analysislock.Analysis) bool {
		return d.UpdatedAt.IsZero()
	})
	if err != nil {
		return found, err
	}

	// No query finds a missing field, so the documents with one are subtracted.
	without, err := count(ctx, all.Query)
	for _, operator := range []string{"in", "not-in"} {
		if err != nil {
			break
		}
		var n int64
		n, err = count(ctx, all.Where(f.Status, operator, f.words()))
		without -= n
	}
	if err != nil || without <= 0 {
		return found, err
	}

	more, err := unfound(all.Query, limit-len(found), func(r reading, d *analysislock.Analysis) bool {
		return r.fields[f.Status] == nil && (d.Malformed != nil || unleased(r))
	})
	return append(found, more...), err
}

// unleased reports whether no acquisition has written a lockToken.
func unleased(r reading) bool {
	token, ok := parseInt(r.fields["lockToken"])
	return ok && token == 0
}

// UnknownStatus reads up to limit analyses whose status is no word of Fields, in one
// query that needs no composite index, and returns the ID and Status of the analyses
// that were never acquired, which recovery does not find. It returns the errors of Page.
func (a *Analyses) UnknownStatus(ctx context.Context, limit int) ([]analysislock.Analysis, error) {
	f := a.codec.fields
	q := a.documents.collection.Where(f.Status, "not-in", f.vocabulary()).Select(f.Status, "lockToken").Limit(limit)
	return a.match(ctx, "find analyses of unknown status", q, limit, func(r reading, d *analysislock.Analysis) bool {
		return d.Malformed == nil && unleased(r)
	})
}

// Failure is a Code of Analysis.Cause, with the number N of FAILED analyses that have it and the
// Newest of them, by UpdatedAt.
type Failure struct {
	Code   string
	N      int64
	Newest []analysislock.Analysis // the newest first; at least one
}

// Failures counts up to maxFailures codes of Error and as many of LastError, and reads up to sample
// analyses of each group that it returns.
const maxFailures, sample = 200, 20

// Failures returns the groups of FAILED analyses by their code, the largest first, and up to 20
// analyses of each, as Find does. It returns up to limit groups, and how many it leaves out. Of more
// than 200 codes, it counts the first 200 by name; of the analyses that ran out of attempts, it looks
// among the newest 1,000 for analyses without a last error.
//
// It makes a query and a count for each code, and a query for each group, each within 15 s. It needs
// the indexes of a Filter with Status and Code. It returns the errors of Page.
func (a *Analyses) Failures(ctx context.Context, limit int) (all []Failure, left int, err error) {
	codes, err := a.Codes(ctx, maxFailures)
	if err != nil {
		return nil, 0, err
	}
	for _, code := range codes {
		all = append(all, Failure{Code: code})
	}
	each := func(read func(ctx context.Context, f *Failure, group *Filter) error) error {
		reads, ctx := errgroup.WithContext(ctx)
		reads.SetLimit(8)
		for i := range all {
			group := &Filter{Status: analysislock.Failed, Code: all[i].Code, Cause: true}
			reads.Go(func() error { return read(ctx, &all[i], group) })
		}
		return reads.Wait()
	}

	err = each(func(ctx context.Context, f *Failure, group *Filter) (err error) {
		if f.Code != analysislock.AttemptsExhausted {
			f.N, err = a.Count(ctx, *group)
			return err
		}
		f.Newest, _, err = a.page(ctx, group, "", findPage, a.listed())
		f.N = int64(len(f.Newest))
		return err
	})
	if err != nil {
		return nil, 0, err
	}

	all = slices.DeleteFunc(all, func(f Failure) bool { return f.N == 0 })
	slices.SortStableFunc(all, func(x, y Failure) int { return cmp.Compare(y.N, x.N) })
	left = max(0, len(all)-limit)
	all = all[:len(all)-left]
	err = each(func(ctx context.Context, f *Failure, group *Filter) (err error) {
		if len(f.Newest) == 0 {
			f.Newest, err = a.Find(ctx, *group, "", sample)
		}
		f.Newest = f.Newest[:min(sample, len(f.Newest))]
		return err
	})
	return slices.DeleteFunc(all, func(f Failure) bool { return len(f.Newest) == 0 }), left, err
}

// Codes reads up to limit codes of Error and as many of LastError, sorted, in a query for each. It
// needs the indexes of a Filter with a Code. It returns the errors of Page.
func (a *Analyses) Codes(ctx context.Context, limit int) ([]string, error) {
	all, err := a.codes(ctx, a.codec.fields.Error, limit)
	last, lastErr := a.codes(ctx, "lastError", limit)
	all = append(all, last...)
	slices.Sort(all)
	return slices.Compact(all), errors.Join(err, lastErr)
}

// codes reads up to limit codes of a field, sorted. Each query finds the next code after the last one.
func (a *Analyses) codes(ctx context.Context, field string, limit int) (all []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	path := field + ".code"
	q := a.documents.collection.OrderBy(path, firestore.Asc).OrderBy("updatedAt", firestore.Desc).Limit(1).Select(path)
	last := ""
	for len(all) < limit {
		found, err := q.Where(path, ">", last).Documents(ctx).GetAll()
		if err != nil {
			return all, queryError("find error codes", err)
		}
		if len(found) == 0 {
			break
		}
		v, _ := found[0].DataAt(path)
		last, _ = v.(string) // the query finds only strings
		all = append(all, cut(last))
	}
	return all, nil
}

// Now returns Firestore's time, by one read.
func (a *Analyses) Now(ctx context.Context) (time.Time, error) { return a.documents.now(ctx) }
