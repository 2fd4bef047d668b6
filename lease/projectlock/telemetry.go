package projectlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	telemetryDir     = "autosave" // under project (P10)
	telemetryPending = 256        // lines waiting for a slow disk; more are dropped
)

// Telemetry writes the events that it is given to project/autosave, a line of
// JSON each, named autosave.lock.* (P8, R4): Subscribe its Record. It writes on a
// goroutine of its own, so that neither a slow nor a failing disk reaches the
// lock: what cannot be written is dropped, and the log told so, once.
type Telemetry struct {
	project string
	log     *slog.Logger
	lines   chan Event
	done    chan struct{}
	failed  sync.Once

	mu     sync.Mutex
	closed bool
}

// NewTelemetry is the sink for the project in dir; empty is the working
// directory. A nil log is silent. The caller calls Close.
func NewTelemetry(dir string, log *slog.Logger) *Telemetry {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if dir == "" {
		dir = "."
	}
	t := &Telemetry{project: filepath.Join(dir, projectDir), log: log, lines: make(chan Event, telemetryPending), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		for e := range t.lines {
			if err := t.write(&e); err != nil {
				t.fail(err)
			}
		}
	}()
	return t
}

// Record takes an event, at once. It may be called after Close, in vain.
func (t *Telemetry) Record(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	select {
	case t.lines <- e:
	default:
		t.fail(errors.New("the disk is too slow"))
	}
}

// Close waits until what was recorded is written, or ctx ends.
func (t *Telemetry) Close(ctx context.Context) error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.lines)
	}
	t.mu.Unlock()
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("projectlock: telemetry: %w", context.Cause(ctx))
	}
}

func (t *Telemetry) fail(err error) {
	t.failed.Do(func() {
		t.log.Warn("lock telemetry is incomplete; the lock is not affected", "err", err)
	})
}

// write appends one line by one write, so that lines of programs that share the
// file do not mix.
func (t *Telemetry) write(e *Event) (err error) {
	data, err := json.Marshal(e.telemetry())
	if err != nil {
		return err
	}
	if err := makeDir(t.project); err != nil {
		return err
	}
	root, err := os.OpenRoot(t.project) // no link leads out of it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := root.Mkdir(telemetryDir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	name := filepath.Join(telemetryDir, "lock-"+e.Time.UTC().Format(time.DateOnly)+".jsonl")
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Close())
}
