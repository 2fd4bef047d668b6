package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"taskguard/orchestrator"
)

// exitPermanent tells the worker that trying again is of no use.
const exitPermanent = 65

var errOrphaned = errors.New("the worker is gone")

// analyze is an exec: analyzer: builtin:document, slow enough to be watched.
// It ends by itself when the worker that started it has died, since a killed
// worker cannot end it.
func analyze(ctx context.Context, c *call) error {
	wait := c.flags.Duration("wait", 0, "how long a run takes before its result is computed")
	if _, err := c.parse(0, 0); err != nil {
		return err
	}
	parent, err := strconv.Atoi(c.value(workerPID))
	if err != nil {
		parent = os.Getppid()
	}
	var job orchestrator.Job
	if err := json.NewDecoder(c.in).Decode(&job); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	if err := outlast(ctx, *wait, func() bool { return os.Getppid() == parent }); err != nil {
		return err
	}
	document, err := orchestrator.New("builtin:document", orchestrator.Options{})
	if err != nil {
		return err
	}
	result, err := document.Analyze(ctx, job)
	var permanent *orchestrator.PermanentError
	switch {
	case errors.As(err, &permanent):
		return exitError{exitPermanent, errors.New(permanent.Message)}
	case err != nil:
		return err
	}
	return json.NewEncoder(c.out).Encode(result)
}

// outlast waits for d, or until ctx ends or alive answers false.
func outlast(ctx context.Context, d time.Duration, alive func() bool) error {
	const glance = 100 * time.Millisecond
	for end := time.Now().Add(d); ; {
		left := time.Until(end)
		switch {
		case !alive():
			return errOrphaned
		case left <= 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(left, glance)):
		}
	}
}
