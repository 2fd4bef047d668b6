package fence

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/repo"
)

// ErrStale reports a token lower than a token already accepted for the same key.
var ErrStale = errors.New("fence: stale token")

var errToken = errors.New("fence: the token, in X-Lock-Token, is not a positive integer that a lock can have")

// maxAhead limits how far a token of a request may be beyond Firestore's time in microseconds.
// The first token of a lock is at most that time, and each later one is larger by one. Without
// the limit, one token of a faulty client could make all real tokens stale.
const maxAhead = 24 * time.Hour

// Options has the settings of a Fence. The zero value is usable.
type Options struct {
	// Collection is the path of the collection of fences; empty: fences.
	Collection string
	// Keep is the time from the write of a fence to its expireAt; zero: 30 days.
	Keep time.Duration
	// Key returns a request's key, or ""; nil: the header Idempotency-Key, percent-decoded.
	Key func(*http.Request) string
	// Log gets a line for each request that Middleware refuses; nil: none.
	Log *slog.Logger
}

// Fence keeps the highest token of each key. It is safe for concurrent use.
type Fence struct {
	client  *firestore.Client
	options Options
}

// New returns a Fence without a call to Firestore. The caller closes client.
func New(client *firestore.Client, o Options) (*Fence, error) {
	o.Collection = cmp.Or(o.Collection, "fences")
	o.Keep = cmp.Or(o.Keep, 30*24*time.Hour)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Key == nil {
		o.Key = func(r *http.Request) string {
			key, _ := url.PathUnescape(r.Header.Get("Idempotency-Key")) // "" after an error
			return key
		}
	}
	if o.Keep < 0 {
		return nil, fmt.Errorf("fence: Keep is %v", o.Keep)
	}
	if err := repo.CheckCollection(o.Collection); err != nil {
		return nil, fmt.Errorf("fence: %w", err)
	}
	return &Fence{client, o}, nil
}

// state is the document of a key.
type state struct {
	Token    int64     `firestore:"token"`
	RemoveAt time.Time `firestore:"expireAt"`
}

// next returns the state after token has arrived at the time now, or ErrStale. An equal
// token changes the state only after half of keep, so that most writes of a run do not
// cost a write of the fence.
func (s state) next(token int64, now time.Time, keep time.Duration) (state, error) {
	if token < s.Token {
		return s, fmt.Errorf("%w: %d is lower than %d", ErrStale, token, s.Token)
	}
	if token > s.Token || s.RemoveAt.Before(now.Add(keep/2)) {
		s = state{token, now.Add(keep)}
	}
	return s, nil
}

// Commit runs write as client.RunTransaction does, and commits only if the token is not
// stale. Otherwise it returns ErrStale and writes nothing. write may be nil. Commit may call
// it several times, and returns its error unchanged. After an error of Firestore the writes
// may have been made, and the caller may repeat the call. Commit returns
// lease.ErrInvalidKey for a key that Firestore cannot hold, and lease.ErrMalformed for a
// fence that another program has changed. It blocks until Firestore answers or ctx ends.
func (f *Fence) Commit(ctx context.Context, key string, token int64,
	write func(context.Context, *firestore.Transaction) error,
) error {
	return f.commit(ctx, key, token, 0, write)
}

// commit is like Commit. It refuses a token that is more than ahead beyond Firestore's time in
// microseconds, unless ahead is zero.
func (f *Fence) commit(ctx context.Context, key string, token int64, ahead time.Duration,
	write func(context.Context, *firestore.Transaction) error,
) error {
	if err := lease.CheckKey("fence", key, 1500); err != nil {
		return err
	}
	if token < 1 {
		return errToken
	}

	doc := f.client.Collection(f.options.Collection).Doc(key)
	return f.client.RunTransaction(ctx, func(ctx context.Context, tx *firestore.Transaction) error {
		snap, err := tx.Get(doc)
		if snap == nil { // a missing document has one
			return err
		}
		var before state
		if snap.Exists() {
			if err := snap.DataTo(&before); err != nil {
				return fmt.Errorf("fence: %w: %w", lease.ErrMalformed, err)
			}
		}

		if ahead > 0 && token > snap.ReadTime.Add(ahead).UnixMicro() {
			return errToken
		}
		next, err := before.next(token, snap.ReadTime, f.options.Keep)
		if err == nil && write != nil {
			err = write(ctx, tx)
		}
		if err != nil || next == before {
			return err
		}
		return tx.Set(doc, next)
	})
}

// Middleware calls next for a request whose token, in X-Lock-Token, is not stale. It makes
// one transaction, within 10 s. The answer to any other request is JSON with a reason:
//
//   - 409 stale_token. The worker would treat 412 as a permanent failure, and record FAILED
//     for a record that was deleted and created again.
//   - 400 bad_request if the key cannot be used, or the token is not a positive integer less
//     than a day beyond Firestore's time in microseconds.
//   - 503 unavailable if Firestore does not answer.
//   - 500 malformed if another program has changed the fence.
func (f *Fence) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, reason := http.StatusServiceUnavailable, "unavailable"
		err := f.check(r)
		switch {
		case err == nil:
			next.ServeHTTP(w, r)
			return
		case errors.Is(err, ErrStale):
			code, reason = http.StatusConflict, "stale_token"
		case errors.Is(err, errToken), errors.Is(err, lease.ErrInvalidKey):
			code, reason = http.StatusBadRequest, "bad_request"
		case errors.Is(err, lease.ErrMalformed):
			code, reason = http.StatusInternalServerError, "malformed"
		}

		f.options.Log.WarnContext(r.Context(), "refused by the fence", "status", code, "reason", reason, "error", err)
		answer := map[string]string{"reason": reason}
		if code < 500 {
			answer["error"] = err.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(answer)
	})
}

// check returns nil if next may handle r.
func (f *Fence) check(r *http.Request) error {
	token, err := strconv.ParseInt(r.Header.Get("X-Lock-Token"), 10, 64)
	if err != nil {
		return errToken
	}
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	return f.commit(ctx, f.options.Key(r), token, maxAhead, nil)
}
