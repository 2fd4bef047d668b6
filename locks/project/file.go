package project

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"taskguard/lease"
	"taskguard/lease/iso8601"
	"taskguard/locks/document"
)

const (
	projectDir = "project"
	lockFile   = ".lock"       // in projectDir
	guardFile  = ".lock.guard" // flocked; never removed: otherwise two programs could hold the lock
	// unknown is the owner of an unreadable file.
	unknown = "?"
	// credible bounds a TTL, and how far the times in the file may be ahead of its
	// time of modification: by less, a clock may have been set back.
	credible = 24 * time.Hour
)

// lockFileStore is project/.lock as a store. It makes the directory project, but not its parents.
type lockFileStore struct {
	*lease.File[document.Lock]
	dir string

	mu    sync.Mutex
	seen  any       // the version that was read last
	since time.Time // when it was first seen, by the monotonic clock
}

// Load reads the file. A lock that was seen unchanged for its TTL has expired: a dead holder whose
// clock was an hour ahead does not block for an hour.
func (s *lockFileStore) Load(ctx context.Context, key string, want lease.Want) (lease.Cell[document.Lock], error) {
	c, err := s.File.Load(ctx, key, want)
	if err != nil {
		return c, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if c.Rev != s.seen {
		s.seen, s.since = c.Rev, now
	}
	now = now.Round(0) // as a store's time
	if l, expired := lease.Outwaited(c.Doc.Lease, now, c.Asked.Sub(s.since)); expired {
		c.Doc.Lease, c.At = l, now
	}
	return c, nil
}

func (s *lockFileStore) Swap(ctx context.Context, key string, prev lease.Cell[document.Lock],
	next document.Lock,
) (lease.Cell[document.Lock], error) {
	if err := os.Mkdir(s.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return lease.Cell[document.Lock]{}, fmt.Errorf("%w: %w", lease.ErrRefused, err)
	}
	return s.File.Swap(ctx, key, prev, next)
}

// format is the format of project/.lock.
type format struct{}

// record is the file's content. Other programs need only uuid, mtime and ttl.
type record struct {
	UUID  string    `json:"uuid"`
	MTime string    `json:"mtime"` // of the last heartbeat, ISO 8601
	TTL   *int64    `json:"ttl"`   // milliseconds from then
	At    time.Time `json:"at"`    // the store's time of writing, exactly
	Owner string    `json:"owner,omitempty"`
	Token int64     `json:"token,omitempty"`
}

// Name returns the same name for each key: a Locker has one.
func (format) Name(string) (string, error) { return lockFile, nil }

// Encode keeps no record without an owner. One without a heartbeat is expired.
func (format) Encode(_ string, doc document.Lock, at time.Time) ([]byte, error) {
	if doc.Owner == "" {
		return nil, nil
	}
	if doc.HeartbeatAt.IsZero() {
		doc.HeartbeatAt = doc.ExpiresAt
	}

	ttl := doc.ExpiresAt.Sub(doc.HeartbeatAt).Milliseconds()
	r := record{UUID: doc.Owner, MTime: iso8601.Format(doc.HeartbeatAt), TTL: &ttl, At: at, Token: doc.Token}
	if i := strings.LastIndexByte(doc.Owner, '/'); i >= 0 {
		r.Owner, r.UUID = doc.Owner[:i], doc.Owner[i+1:]
	}
	data, err := json.Marshal(r)
	return append(data, '\n'), err
}

// Decode reads a file of any program. A half-written, empty or unreadable file
// counts as another owner's lock, held until one TTL after its modification.
func (format) Decode(_ string, data []byte, modified time.Time) (doc document.Lock, at time.Time, _ error) {
	var r record
	err := json.Unmarshal(data, &r)
	heartbeat, timeErr := time.Parse(time.RFC3339Nano, r.MTime)
	switch {
	case err != nil, timeErr != nil, r.UUID == "", r.TTL == nil, *r.TTL < 0, *r.TTL > credible.Milliseconds(),
		heartbeat.Sub(modified) > credible, r.At.Sub(modified) > credible:
		doc.Owner, doc.HeartbeatAt = unknown, modified
		doc.ExpiresAt = lease.AssumedExpiry(modified, modified, lease.Policy{TTL: FileLockTTL})
		return doc, modified, nil //nolint:nilerr // an unreadable file is held
	}

	if at = r.At; at.IsZero() { // another program's
		at = heartbeat
	}
	doc.Owner, doc.Token = ownerOf(r.Owner, r.UUID), r.Token
	doc.HeartbeatAt, doc.ExpiresAt = heartbeat, heartbeat.Add(time.Duration(*r.TTL)*time.Millisecond)
	return doc, at, nil
}

// ownerOf returns the owner in a record, from its name and the lease's ID.
func ownerOf(name, id string) string {
	if name == "" {
		return id
	}
	return name + "/" + id
}
