package project

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Telemetry writes events to project/autosave, one line of JSON each, named
// autosave.lock.*: Subscribe its Record. A line that cannot be written is
// dropped; the lock is not affected (SEEDS P8).
type Telemetry struct {
	project string
	log     *slog.Logger
	failed  sync.Once
}

// NewTelemetry returns the sink for the project in dir; empty: the working
// directory. It reports its first failure to log.
func NewTelemetry(dir string, log *slog.Logger) *Telemetry {
	return &Telemetry{project: filepath.Join(dir, projectDir), log: log}
}

// Record appends one line.
func (t *Telemetry) Record(e Event) {
	if err := t.write(&e); err != nil {
		t.failed.Do(func() { t.log.Warn("lock telemetry is incomplete; the lock is not affected", "err", err) })
	}
}

// write appends the line by one write, so that the lines of programs that share
// the file do not mix.
func (t *Telemetry) write(e *Event) error {
	f := e.fields()
	f["feature"], f["type"] = "autosave", "autosave."+strings.Replace(string(e.Type), ":", ".", 1)
	if e.Type == ReadonlyEntered {
		f["alias"] = "autosave.lock.readonly" // seed 000's name of it
	}
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}

	dir := filepath.Join(t.project, "autosave")
	for _, missing := range []string{t.project, dir} {
		_ = os.Mkdir(missing, 0o755) // if it fails, so does OpenFile
	}
	name := filepath.Join(dir, "lock-"+e.Time.UTC().Format(time.DateOnly)+".jsonl")
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(data, '\n'))
	return errors.Join(err, file.Close())
}
