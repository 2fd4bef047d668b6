package env

import (
	"fmt"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/lease"
)

// Firestore names a database.
type Firestore struct {
	Project  string // empty: from the metadata server
	Database string
	Emulator string // FIRESTORE_EMULATOR_HOST, which Google's library reads itself
}

// Firestore reads the name of the database.
func (e *Environment) Firestore() Firestore {
	return Firestore{
		Project:  e.Name("GOOGLE_CLOUD_PROJECT", ""),
		Database: e.Name("FIRESTORE_DATABASE", "(default)"),
		Emulator: e.Address("FIRESTORE_EMULATOR_HOST"),
	}
}

// LockPolicy reads the policy of the locks of analyses.
func (e *Environment) LockPolicy() lease.Policy {
	p := lease.Policy{
		TTL:         e.Duration("LOCK_TTL", lease.DefaultTTL),
		MaxAttempts: e.Integer("MAX_ATTEMPTS", 10, 1, 1_000_000),
	}
	p.Heartbeat = e.Duration("LOCK_HEARTBEAT", 0)
	e.Add(Named("LOCK_TTL, LOCK_HEARTBEAT", p.Check()))
	return p
}

// KeepFinished reads the time for which finished analyses are kept; 0: without limit.
func (e *Environment) KeepFinished() time.Duration {
	keep := e.DurationOrZero("KEEP_FINISHED", 0)
	e.Add(CheckKeep(keep, e.Text("TASK_QUEUE", "") != ""))
	return keep
}

// CheckKeep returns a problem of KEEP_FINISHED if keep is negative, or too short for a service
// whose deliveries come from a queue.
func CheckKeep(keep time.Duration, queue bool) error {
	switch {
	case keep < 0:
		return fmt.Errorf("KEEP_FINISHED: %v is negative", keep)
	case keep > 0 && keep < 32*24*time.Hour && queue:
		return fmt.Errorf("KEEP_FINISHED: %v is under 768h: Cloud Tasks may deliver a task for 31 days", keep)
	}
	return nil
}

// TaskQueue reads the queue of deliveries, their target and their caller. It returns the zero
// Config if no queue is named.
func (e *Environment) TaskQueue() taskqueue.Config {
	c := taskqueue.Config{
		Name: e.Text("TASK_QUEUE", ""), TargetURL: e.Text("TASK_TARGET_URL", ""), Caller: e.Text("TASK_CALLER", ""),
		Audience: e.Text("TASK_AUDIENCE", ""), EmulatorHost: e.Address("CLOUD_TASKS_EMULATOR_HOST"),
	}
	if c.Name == "" {
		e.Unused("belongs to TASK_QUEUE, which is not set",
			"TASK_TARGET_URL", "TASK_CALLER", "CLOUD_TASKS_EMULATOR_HOST")
		return taskqueue.Config{}
	}
	e.ForTests("CLOUD_TASKS_EMULATOR_HOST")
	e.Add(c.Check())
	return c
}
