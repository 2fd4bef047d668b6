package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskguard/lease"
	"taskguard/repo"
	"taskguard/worker/taskqueue"
)

// environmentOf says which variables a command reads.
func environmentOf(command string) string {
	const documents = "GOOGLE_CLOUD_PROJECT, FIRESTORE_DATABASE, FIRESTORE_EMULATOR_HOST, ANALYSES_COLLECTION"
	const queue = "TASK_QUEUE, TASK_TARGET_URL, TASK_CALLER, TASK_AUDIENCE, CLOUD_TASKS_EMULATOR_HOST, and the worker's RUN_TIMEOUT (25m)"
	switch command {
	case "status":
		return documents
	case "console":
		return documents + "; " + queue + " and LOCK_TTL (5m); PORT with --listen; LOG_FORMAT (text); TASK_JWKS_URL, for tests: where the proxy's public keys are. On Cloud Run its probe is of TCP, as every request needs the proxy."
	case "submit":
		return documents + "; " + queue
	case "recover":
		return documents + "; " + queue + " and LOCK_TTL (5m)"
	case "unlock":
		return documents + "; " + queue + ". Without TASK_QUEUE the document is changed and no delivery is booked. With --room: DOCUMENT_LOCKS_COLLECTION (documentLocks), and no queue."
	case "requeue":
		return documents + "; " + queue + ". Without TASK_QUEUE the document is changed and no delivery is booked."
	case "demo":
		return "FIRESTORE_EMULATOR_HOST: use that emulator; with --cloud GOOGLE_CLOUD_PROJECT and FIRESTORE_DATABASE; NO_COLOR"
	case "local":
		return "ANALYZER (builtin:document) and ANALYZER_OUTPUT; FIRESTORE_EMULATOR_HOST: use that emulator; ANALYSES_COLLECTION; the worker's LOCK_…, MAX_…, RUN_TIMEOUT and FIRESTORE_TRANSACTIONS; the document lock's DOCUMENT_LOCK_TTL and DOCUMENT_LOCKS_COLLECTION"
	case "doctor":
		return documents + ", TASK_QUEUE; for short names also CLOUDSDK_RUN_REGION, or the region of TASK_QUEUE. Where TASK_AUTH is set and no --service is named, all that the worker reads, see docs/reference.md"
	case "worker":
		return "the worker's, see docs/reference.md"
	}
	return ""
}

const (
	firestoreEmulator = "FIRESTORE_EMULATOR_HOST"
	tasksEmulator     = "CLOUD_TASKS_EMULATOR_HOST"
)

// duration reads a variable that the worker reads likewise.
func (c *call) duration(name string, def time.Duration) (time.Duration, error) {
	text := c.value(name)
	if text == "" {
		return def, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, environmentError{fmt.Errorf("%s: %q is not a positive duration such as 300s or 25m", name, text)}
	}
	return d, nil
}

// lockPolicy is that of the workers, whose TTL tells what nobody works on.
func (c *call) lockPolicy() (p lease.Policy, err error) {
	if p.TTL, err = c.duration("LOCK_TTL", lease.DefaultTTL); err != nil {
		return p, err
	}
	if err := p.Check(); err != nil {
		return p, environmentError{fmt.Errorf("LOCK_TTL: %w", err)}
	}
	return p, nil
}

func missing(name string) error { return fmt.Errorf("%s: must be set", name) }

// place is a collection of analyses in a database.
type place struct {
	project, database, collection string
	emulator                      string // host:port; empty: Google's
}

// place reads where the analyses are.
func (c *call) place() (place, error) {
	p := place{
		project: c.value("GOOGLE_CLOUD_PROJECT"), database: c.value("FIRESTORE_DATABASE"),
		collection: c.value("ANALYSES_COLLECTION"), emulator: c.value(firestoreEmulator),
	}
	var problems []error
	if p.project == "" {
		problems = append(problems, missing("GOOGLE_CLOUD_PROJECT"))
	}
	if p.collection != "" {
		if err := repo.CheckCollection(p.collection); err != nil {
			problems = append(problems, fmt.Errorf("ANALYSES_COLLECTION: %w", err))
		}
	}
	if err := checkEmulator(firestoreEmulator, p.emulator); err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return p, environmentError{errors.Join(problems...)}
	}
	return p, nil
}

// open connects to p, which completes the options.
func (p place) open(ctx context.Context, options repo.Options) (*repo.Analyses, error) {
	options.Database, options.Collection, options.Emulator = p.database, p.collection, p.emulator
	return repo.Open(ctx, p.project, options)
}

// rooms connects to the document locks of p, in the collection that the environment
// names.
func (c *call) rooms(ctx context.Context, p place) (*repo.Rooms, error) {
	o := repo.Options{Database: p.database, Emulator: p.emulator, Collection: c.value("DOCUMENT_LOCKS_COLLECTION"), Log: c.log()}
	if o.Collection != "" {
		if err := repo.CheckCollection(o.Collection); err != nil {
			return nil, environmentError{fmt.Errorf("DOCUMENT_LOCKS_COLLECTION: %w", err)}
		}
	}
	return repo.OpenRooms(ctx, p.project, o)
}

// queueConfig reads where deliveries are booked; named is false where no queue
// is named at all.
func (c *call) queueConfig() (cfg taskqueue.Config, named bool, err error) {
	cfg = taskqueue.Config{
		Queue: c.value("TASK_QUEUE"), TargetURL: c.value("TASK_TARGET_URL"),
		Caller: c.value("TASK_CALLER"), Audience: c.value("TASK_AUDIENCE"), EmulatorHost: c.value(tasksEmulator),
	}
	if err := checkEmulator(tasksEmulator, cfg.EmulatorHost); err != nil {
		return cfg, false, environmentError{err}
	}
	if cfg.Queue == "" {
		for _, name := range []string{"TASK_TARGET_URL", "TASK_CALLER"} {
			if c.value(name) != "" {
				return cfg, false, environmentError{fmt.Errorf("TASK_QUEUE: must be set where %s is", name)}
			}
		}
		return cfg, false, nil
	}
	err = cfg.Check()
	if cfg.Caller == "" && cfg.EmulatorHost == "" {
		err = errors.Join(err, errors.New("TASK_CALLER: must be set, to the service account that the worker accepts"))
	}
	if err != nil {
		return cfg, true, environmentError{err}
	}
	return cfg, true, nil
}
