//go:build unix

package projectlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"taskguard/lease"
	"taskguard/lease/documentlock"
	"taskguard/lease/iso8601"
)

// Where things are (P10).
const (
	projectDir = "project"
	lockFile   = ".lock"
	guardFile  = ".lock.guard" // flocked; stays, since whoever removed it would let two in
)

// files is project/.lock as a store, which makes the directory.
type files struct {
	*lease.File[documentlock.Lock]
	dir string
}

func newFiles(parent string) (lease.Store[documentlock.Lock], error) {
	dir := filepath.Join(parent, projectDir)
	f := lease.NewFile(dir, guardFile, format{})
	return files{f, dir}, nil
}

// Load is File's, where project is a directory and no link to elsewhere.
func (f files) Load(ctx context.Context, key string) (lease.Cell[documentlock.Lock], error) {
	if err := checkDir(f.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return lease.Cell[documentlock.Lock]{}, err
	}
	return f.File.Load(ctx, key)
}

// Swap is File's, and makes the directory.
func (f files) Swap(ctx context.Context, key string, prev lease.Cell[documentlock.Lock], next documentlock.Lock) (lease.Cell[documentlock.Lock], error) {
	if err := makeDir(f.dir); err != nil {
		return lease.Cell[documentlock.Lock]{}, err
	}
	return f.File.Swap(ctx, key, prev, next)
}

// makeDir makes dir in a directory that there is.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o755)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", lease.ErrRefused, err)
	case err != nil && !errors.Is(err, fs.ErrExist):
		return err
	}
	return checkDir(dir)
}

// checkDir refuses what is no directory, or a link to one.
func checkDir(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%w: %s is no directory", lease.ErrRefused, dir)
	}
	return nil
}

// format is that of project/.lock.
type format struct{}

// record is what the file holds. Other programs need uuid, mtime and ttl alone.
type record struct {
	UUID     string    `json:"uuid"`
	MTime    string    `json:"mtime"` // of the last heartbeat, ISO 8601
	TTL      *int64    `json:"ttl"`   // milliseconds from then
	At       time.Time `json:"at"`    // the store's time of writing, exactly
	Owner    string    `json:"owner,omitempty"`
	LockedAt string    `json:"lockedAt,omitempty"`
	Holder   string    `json:"holder,omitempty"`
	Token    int64     `json:"token,omitempty"`
}

const (
	// stranger owns a file that cannot be made out.
	stranger = "?"
	// credible bounds a TTL, and how far ahead of the file's own time its mtime may
	// be: by less, a clock may have been set back.
	credible = 24 * time.Hour
)

// Name is one name for the one key that a Locker has.
func (format) Name(string) (string, error) { return lockFile, nil }

// Encode keeps no record without an owner. One without a heartbeat is expired.
func (format) Encode(_ string, doc documentlock.Lock, at time.Time) ([]byte, error) {
	if doc.Owner == "" {
		return nil, nil
	}
	if doc.HeartbeatAt.IsZero() {
		doc.HeartbeatAt = doc.ExpiresAt
	}
	r := record{
		UUID: doc.Owner, MTime: iso8601.Format(doc.HeartbeatAt), TTL: millis(doc.ExpiresAt.Sub(doc.HeartbeatAt)), At: at,
		LockedAt: iso8601.Format(doc.LockedAt), Holder: doc.Holder, Token: doc.Token,
	}
	if i := strings.LastIndexByte(doc.Owner, '/'); i >= 0 {
		r.Owner, r.UUID = doc.Owner[:i], doc.Owner[i+1:]
	}
	data, err := json.Marshal(r)
	return append(data, '\n'), err
}

// Decode makes out a file of any program. One that is half-written, empty or of
// something else counts as a stranger's, held until one TTL after the file was
// modified.
func (format) Decode(_ string, data []byte, modified time.Time) (documentlock.Lock, time.Time, error) {
	var r record
	if err := json.Unmarshal(data, &r); err == nil {
		if doc, at, ok := r.lock(modified); ok {
			return doc, at, nil
		}
	}
	doc := documentlock.Lock{LockedAt: modified, Holder: stranger}
	doc.Owner = stranger
	doc.HeartbeatAt, doc.ExpiresAt = modified, lease.Presume(modified, modified, lease.Policy{TTL: FileLockTTL})
	return doc, modified, nil
}

// lock is what r says; false where that makes no sense.
func (r record) lock(modified time.Time) (doc documentlock.Lock, at time.Time, ok bool) {
	heartbeat, err := time.Parse(time.RFC3339Nano, r.MTime)
	switch {
	case err != nil, r.UUID == "", r.TTL == nil, *r.TTL < 0, *r.TTL > credible.Milliseconds(),
		heartbeat.Sub(modified) > credible, r.At.Sub(modified) > credible:
		return doc, at, false
	}
	if at = r.At; at.IsZero() { // others write none
		at = heartbeat
	}
	if doc.LockedAt, err = time.Parse(time.RFC3339Nano, r.LockedAt); err != nil {
		doc.LockedAt = heartbeat
	}
	doc.Owner, doc.Holder, doc.Token = ownerOf(r.Owner, r.UUID), r.Holder, r.Token
	doc.HeartbeatAt, doc.ExpiresAt = heartbeat, heartbeat.Add(time.Duration(*r.TTL)*time.Millisecond)
	return doc, at, true
}
