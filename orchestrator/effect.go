package orchestrator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Effect is the record of a marked act: a side effect elsewhere that must not be repeated.
type Effect struct {
	Done   bool            // else it has begun, and may have been done
	Result json.RawMessage // of an act that is done
	Token  int64           // the LockToken of the attempt that has written the record
	Since  time.Time       // the time of the record, by the store's clock
}

// Marker is a Reporter that also records acts. Both methods return when the record is
// committed. They return an error if that is impossible, or when ctx ends.
type Marker interface {
	// Begin records that the act begins. If an attempt has recorded the act before, Begin
	// changes nothing and returns that record; with again, only if the act is done.
	Begin(ctx context.Context, name string, again bool) (*Effect, error)
	// End records the result of an act that is done, a value as Storable returns it, or removes
	// the record of one that was not done. If ctx ends first, the record is committed with
	// the lock's release. An act that is done stays so, with its first result.
	End(ctx context.Context, name string, done bool, result any) error
}

// UncertainError reports that an attempt has begun an act, and that nobody knows whether it was
// done. A run that returns it is not repeated.
type UncertainError struct {
	Key   string    // the id of the document
	Name  string    // of the act
	Token int64     // the LockToken of the attempt that began it
	Since time.Time // the time when it began, by the store's clock
}

func (e *UncertainError) Error() string {
	return fmt.Sprintf("orchestrator: the act %q of %q may have been done: an attempt began it at %s, with lock token %d",
		e.Name, e.Key, e.Since.UTC().Format(time.RFC3339), e.Token)
}

// Key returns an idempotency key for an act of the job: the same for all attempts, and another for
// each job and act. A provider that gets it with each request does the act once.
func (j Job) Key(act string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{j.Scope, j.AnalysisID, act}, "\x00")))
	return hex.EncodeToString(sum[:16])
}

func checkAct(name string) error {
	if !validCode.MatchString(name) {
		return errors.New("orchestrator: the name of an act is not 1 to 64 letters, digits, _ and -")
	}
	return nil
}

// Begin calls the Marker of the job. name has up to 64 letters, digits, "_" and "-". Without a
// Marker nothing is recorded.
func (j Job) Begin(ctx context.Context, name string, again bool) (*Effect, error) {
	if err := checkAct(name); err != nil {
		return nil, err
	}
	if m, ok := j.Reporter.(Marker); ok {
		return m.Begin(ctx, name, again)
	}
	return nil, nil //nolint:nilnil // there was no record
}

// End calls the Marker of the job. Result is anything that encoding/json can encode, within
// Storable's limits.
func (j Job) End(ctx context.Context, name string, done bool, result any) error {
	if err := checkAct(name); err != nil {
		return err
	}
	value, err := Storable(result)
	if err != nil {
		return fmt.Errorf("orchestrator: the result of act %q cannot be stored: %w", name, err)
	}
	if m, ok := j.Reporter.(Marker); ok {
		return m.End(ctx, name, done, value)
	}
	return nil
}

// Uncertain returns the UncertainError of an act with the record e.
func (j Job) Uncertain(name string, e *Effect) *UncertainError {
	return &UncertainError{Key: j.AnalysisID, Name: name, Token: e.Token, Since: e.Since}
}
