package worker

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/worker/taskqueue"
	"taskguard/worker/telemetry"
)

// Measures are a delivery in figures, for its log line.
type Measures struct {
	Asked   bool // for the lock
	Acquire time.Duration
	Owner   string // ours, once it was acquired or its analysis given up
	Attempt int
	Stolen  bool

	Ran        bool
	Run        time.Duration
	Heartbeats int    // renewals that were made
	Lost       string // why the lock was: taken, finished, deleted or out_of_time

	FollowUp string // booked or failed, where that was tried

	Task  string // the task's short name
	Tries int    // which of the task's this delivery is, from 1; zero: unknown
}

// Deliver handles one delivery: acquire, run under heartbeats, and finish in
// one fenced commit or release. It returns when nothing of it is left running.
// ctx ends only with the process, not with the caller.
func (g *Guard) Deliver(ctx context.Context, d Delivery) Outcome {
	s := &seams{Measures: new(Measures), guard: g}
	measured := *g
	measured.Locks, measured.Records = s, s
	if g.Queue != nil {
		measured.Queue = s
	}
	o := measured.deliver(ctx, d)
	o.Measures = *s.Measures
	if o.Ran {
		g.Telemetry.Ran(ctx, o.Case.String(), o.Run)
	}
	return o
}

// seams are what a Guard calls, measured for one delivery: Locks, Records and
// Queue. They change no call and no answer.
type seams struct {
	*Measures
	guard *Guard
}

// AcquireAnalysisLock implements Locks.
func (s *seams) AcquireAnalysisLock(ctx context.Context, id, owner string, ttl time.Duration) (analysislock.Acquisition, error) {
	ctx, span := s.guard.Telemetry.Start(ctx, telemetry.Acquire)
	began := time.Now()
	acq, err := s.guard.Locks.AcquireAnalysisLock(ctx, id, owner, ttl)
	s.Asked, s.Acquire = true, time.Since(began)
	outcome := acq.Reason
	switch {
	case err != nil:
		outcome = "error"
	case acq.Acquired:
		outcome = "acquired"
	}
	if acq.Acquired || acq.Reason == analysislock.AttemptsExhausted { // which is written in our name
		s.Owner, s.Attempt, s.Stolen = owner, acq.Attempt, acq.Stolen
	}
	s.guard.Telemetry.Acquired(ctx, outcome, s.Acquire)
	span.Close(outcome, err != nil)
	return acq, err
}

// HoldAnalysisLock implements Locks.
func (s *seams) HoldAnalysisLock(ctx context.Context, id, owner string, body func(ctx context.Context, input json.RawMessage) error, renewed ...lease.Renewed) error {
	ctx, span := s.guard.Telemetry.Start(ctx, telemetry.Run)
	s.guard.Telemetry.Began(ctx, s.Attempt, s.Stolen)
	failed := true // unless it returns
	defer func() {
		s.guard.Telemetry.Ended(ctx)
		span.Close("", failed)
	}()
	began := time.Now()
	err := s.guard.Locks.HoldAnalysisLock(ctx, id, owner, body, append(renewed, s.renewed)...)
	s.Ran, s.Run = true, time.Since(began)
	s.lost(ctx, err)
	failed = err != nil
	return err
}

// renewed is lease.Renewed.
func (s *seams) renewed(ctx context.Context, took time.Duration, err error) {
	outcome := "renewed"
	switch {
	case err == nil:
		s.Heartbeats++
	case errors.Is(err, lease.ErrLost):
		outcome = "lost"
	default:
		outcome = "failed"
	}
	s.guard.Telemetry.Renewed(ctx, outcome, took)
	s.guard.Telemetry.Past(ctx, telemetry.Heartbeat, outcome, took, err != nil)
}

// lost takes the error of a run, or of its finish.
func (s *seams) lost(ctx context.Context, err error) {
	var lost *lease.LostError
	if errors.As(err, &lost) {
		s.Lost = strings.ReplaceAll(lost.Reason, " ", "_")
		s.guard.Telemetry.Lost(ctx, s.Lost)
	}
}

// PeekAnalysisLock implements Locks.
func (s *seams) PeekAnalysisLock(ctx context.Context, id string) (analysislock.Acquisition, error) {
	return s.guard.Locks.PeekAnalysisLock(ctx, id)
}

// ReleaseAnalysisLock implements Locks.
func (s *seams) ReleaseAnalysisLock(ctx context.Context, id, owner string, refund bool) error {
	return s.within(ctx, telemetry.Release, func(ctx context.Context) error {
		return s.guard.Locks.ReleaseAnalysisLock(ctx, id, owner, refund)
	})
}

// Retry implements Records.
func (s *seams) Retry(ctx context.Context, id, owner, code, message string) error {
	return s.within(ctx, telemetry.Release, func(ctx context.Context) error {
		return s.guard.Records.Retry(ctx, id, owner, code, message)
	})
}

// Complete implements Records.
func (s *seams) Complete(ctx context.Context, id, owner string, result any) error {
	return s.finish(ctx, func(ctx context.Context) error {
		return s.guard.Records.Complete(ctx, id, owner, result)
	})
}

// Fail implements Records.
func (s *seams) Fail(ctx context.Context, id, owner, code, message string) error {
	return s.finish(ctx, func(ctx context.Context) error {
		return s.guard.Records.Fail(ctx, id, owner, code, message)
	})
}

func (s *seams) finish(ctx context.Context, do func(ctx context.Context) error) error {
	err := s.within(ctx, telemetry.Finish, do)
	if errors.Is(err, lease.ErrNotFound) {
		s.lost(ctx, &lease.LostError{Reason: lease.Deleted})
	} else {
		s.lost(ctx, err)
	}
	return err
}

// within does it inside a span.
func (s *seams) within(ctx context.Context, name string, do func(ctx context.Context) error) error {
	ctx, span := s.guard.Telemetry.Start(ctx, name)
	err := do(ctx)
	span.Close("", err != nil)
	return err
}

// Book implements Queue.
func (s *seams) Book(ctx context.Context, t taskqueue.Task) (already bool, err error) {
	ctx, span := s.guard.Telemetry.Start(ctx, telemetry.FollowUp)
	already, err = s.guard.Queue.Book(ctx, t)
	outcome := "booked"
	s.FollowUp = outcome
	switch {
	case err != nil:
		outcome, s.FollowUp = "failed", "failed"
	case already:
		outcome = "already"
	}
	s.guard.Telemetry.FollowedUp(ctx, outcome)
	span.Close(outcome, err != nil)
	return already, err
}
