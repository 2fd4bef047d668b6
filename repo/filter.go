package repo

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Filter selects analyses that have an updatedAt. The zero value selects all of them.
type Filter struct {
	Status        string    // empty: any
	Code          string    // see Analysis.HasCode; empty: any
	Cause         bool      // compare Code only with the code of Analysis.Cause
	Since, Before time.Time // Since ≤ UpdatedAt < Before; zero: no limit
	// Prefix selects by the beginning of the ID. If it is not empty, nothing else is
	// compared, and those without updatedAt are selected too.
	Prefix string
	// All selects all, those without updatedAt too, sorted by ID. Nothing else is compared.
	All bool
}

// byID reports whether f selects and sorts by the ID alone.
func (f *Filter) byID() bool { return f.All || f.Prefix != "" }

// check returns lease.ErrInvalidKey for a value that no document can have. For such a value
// Firestore's client returns the error of a database that does not answer.
func (f *Filter) check() error {
	if f.Prefix != "" {
		return analysislock.CheckID(f.Prefix)
	}
	if !utf8.ValidString(f.Status + f.Code) {
		return fmt.Errorf("repo: %w: the status or the code of a filter is not UTF-8", lease.ErrInvalidKey)
	}
	return nil
}

// findPage is the number of analyses that a query of Find reads.
const findPage = 1000

// Find reads up to limit analyses that f selects, without inputs, results and histories, in
// the order of Page. Malformed is set as by Page. Find begins after a next of Page;
// empty: with the first. It makes a query for each 1,000, each within 15 s. It may miss an analysis
// that is updated meanwhile, and one whose updatedAt is a string with another zone's offset.
// It returns the errors of Page.
func (a *Analyses) Find(ctx context.Context, f Filter, after string, limit int) ([]analysislock.Analysis, error) {
	var all []analysislock.Analysis
	for more := true; more && len(all) < limit; more = after != "" {
		found, next, err := a.page(ctx, &f, after, min(limit-len(all), findPage), a.listed())
		if err != nil {
			return nil, err
		}
		all, after = append(all, found...), next
	}
	return all, nil
}

// listed lists the fields that Find reads.
func (a *Analyses) listed() []string {
	return slices.DeleteFunc(a.codec.summary(), func(field string) bool { return field == "history" })
}

// Page reads, without inputs and results, up to limit analyses that f selects, and
// Firestore's time of the reading. They are sorted by updatedAt, the newest first within each
// type of it: strings come before Timestamps, and these before numbers. With a Prefix they
// are sorted by ID. Malformed is set if the lock or the id cannot be used.
//
// after is the next that the call for the previous page returned; empty: Page begins with the
// first analysis. next is empty on the last page. Each page begins exactly after the last
// analysis of the previous page, so an analysis that is not updated meanwhile is on one page.
//
// It makes one query, within 15 s, and one read if that finds nothing. A Status or a Code needs its
// index in deploy/firestore.indexes.json.
//
// Errors: lease.ErrUnavailable; lease.ErrRefused; lease.ErrInvalidKey if after is not a next, or
// if f has a text that is not UTF-8 or a Prefix that no id has.
func (a *Analyses) Page(ctx context.Context, f Filter, after string, limit int) (
	found []analysislock.Analysis, next string, at time.Time, err error,
) {
	found, next, err = a.page(ctx, &f, after, limit, a.codec.summary())
	if len(found) > 0 {
		return found, next, found[0].ReadAt, err
	}
	if err == nil { // the client drops the time of a reply without a document
		at, err = a.documents.now(ctx)
	}
	return nil, next, at, err
}

// page is Page with these fields only.
func (a *Analyses) page(ctx context.Context, f *Filter, after string, limit int, fields []string) (
	found []analysislock.Analysis, next string, err error,
) {
	if err := f.check(); err != nil {
		return nil, "", err
	}
	q := a.selected(f).Limit(limit).Select(fields...)
	if after != "" {
		if q, err = startAfter(q, f, after); err != nil {
			return nil, "", err
		}
	}

	n := 0
	found, err = a.match(ctx, "list analyses", q, limit, func(r reading, d *analysislock.Analysis) bool {
		if n++; n == limit {
			next = position(r)
		}
		return !f.excludes(d)
	})
	return found, next, err
}

// selected returns the query of f, in the order of Page.
func (a *Analyses) selected(f *Filter) firestore.Query {
	all := a.documents.collection
	switch {
	case f.All:
		return all.OrderBy(firestore.DocumentID, firestore.Asc)
	case f.Prefix != "":
		return all.Where(firestore.DocumentID, ">=", all.Doc(f.Prefix)).
			Where(firestore.DocumentID, "<", all.Doc(f.Prefix+"\U0010FFFF")).
			OrderBy(firestore.DocumentID, firestore.Asc)
	}

	q, code := a.withStatus(f.Status), a.codec.fields.Error+".code"
	inError, inLastError := property(code, "==", f.Code), property("lastError.code", "==", f.Code)
	exhausted := property(code, "==", analysislock.AttemptsExhausted) // then the cause is in lastError
	switch {
	case f.Code == "":
	case !f.Cause && f.Status != analysislock.Failed: // excludes leaves out FAILED ones with another cause
		q = anyOf(q, []firestore.EntityFilter{inError, inLastError})
	case f.Code == analysislock.AttemptsExhausted: // excludes leaves out those with a last error, if f.Cause
		q = q.WhereEntity(inError)
	default:
		causedLast := firestore.AndFilter{Filters: []firestore.EntityFilter{exhausted, inLastError}}
		q = anyOf(q, []firestore.EntityFilter{inError, causedLast})
	}

	return anyOf(q, within("updatedAt", f.Since, f.Before)).
		OrderBy("updatedAt", firestore.Desc).OrderBy(firestore.DocumentID, firestore.Desc)
}

// excludes reports whether d, which the query of f has found, has another code, or is outside the
// times of f. The query compares strings as strings, so it can find times with a zone's offset that
// are outside.
func (f *Filter) excludes(d *analysislock.Analysis) bool {
	if f.byID() {
		return false
	}
	late := !f.Before.IsZero() && !d.UpdatedAt.Before(f.Before)
	other := f.Cause && d.Cause() != nil && d.Cause().Code != f.Code || f.Code != "" && !d.HasCode(f.Code)
	return late || other || d.UpdatedAt.Before(f.Since)
}

// place is the position of a document in the order of Page.
type place struct {
	ID        string
	UpdatedAt any
	Timestamp bool `json:",omitempty"` // the type of UpdatedAt, which JSON encodes as a string
}

// position returns the position of a document.
func position(r reading) string {
	updated := r.fields["updatedAt"]
	_, timestamp := updated.(time.Time)
	text, err := json.Marshal(place{ID: r.id, UpdatedAt: updated, Timestamp: timestamp})
	if err != nil { // JSON has no infinity; a list by ID needs the ID alone
		text, _ = json.Marshal(place{ID: r.id})
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// startAfter returns q from the document after a position.
func startAfter(q firestore.Query, f *Filter, after string) (firestore.Query, error) {
	var at place
	text, err := base64.RawURLEncoding.DecodeString(after)
	err = errors.Join(err, json.Unmarshal(text, &at))
	if updated, _ := at.UpdatedAt.(string); at.Timestamp && err == nil {
		at.UpdatedAt, err = time.Parse(time.RFC3339Nano, updated)
	}
	switch {
	case err != nil, at.ID == "", strings.Contains(at.ID, "/"):
		break // not a position
	case f.byID():
		return q.StartAfter(at.ID), nil
	case at.UpdatedAt != nil:
		return q.StartAfter(at.UpdatedAt, at.ID), nil
	}
	return q, fmt.Errorf("repo: %w: not a position of a list", lease.ErrInvalidKey)
}
