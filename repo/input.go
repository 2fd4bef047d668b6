package repo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// inputTimeout bounds the reading of an input.
const inputTimeout = 15 * time.Second

var inputField = []string{"input"}

// askInput sends the read of the input beside the commit that acquires the lock, so
// that it costs no round trip of its own. The answer is received and decoded after
// the commit's: a document that kills the worker then has been counted as an attempt.
func (a *Analyses) askInput(ctx context.Context, prev analysislock.Analysis, next *analysislock.Analysis) (abandon func()) {
	if next.Lock.Owner == "" || next.Lock.Token == prev.Lock.Token {
		return func() {}
	}
	s, _ := next.Stored.(stored)
	s.asked = a.documents.db.request(context.WithoutCancel(ctx), inputTimeout, a.documents.collection.Doc(next.ID), inputField)
	next.Stored = s
	return s.asked.cancel
}

// input receives what askInput has asked for, or reads it where that has failed, and
// keeps its JSON alone.
func (a *Analyses) input(ctx context.Context, d analysislock.Analysis) (input json.RawMessage, err error) {
	take := func(r reading) (err error) {
		if !r.exists {
			return &lease.LostError{Reason: lease.Deleted}
		}
		input, err = Plain(r.fields["input"])
		return err
	}
	if s, _ := d.Stored.(stored); s.asked == nil || s.asked.receive(ctx, take) != nil {
		ctx, cancel := context.WithTimeout(ctx, inputTimeout)
		defer cancel()
		err = a.documents.db.read(ctx, a.documents.collection.Doc(d.ID), inputField, take)
	}
	if err != nil && !errors.Is(err, lease.ErrLost) {
		return nil, fmt.Errorf("%w: read the input of %q: %w", lease.ErrUnavailable, d.ID, err)
	}
	return input, err
}
