package google

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// running is what the emulator prints once it has bound its port.
const running = "is now running"

// tailSize is how many bytes of the emulator's output are kept for errors. A
// Java stack trace is two to four thousand.
const tailSize = 8 << 10

// output receives what the emulator prints: it copies it to log, keeps the end,
// and notices the announcement that the port is bound. Safe for concurrent use.
type output struct {
	log       io.Writer     // nil: not copied
	announced chan struct{} // closed when the emulator says it is running

	mu    sync.Mutex
	tail  []byte
	found bool
}

func newOutput(log io.Writer) *output {
	return &output{log: log, announced: make(chan struct{})}
}

// Write never fails: a log that cannot be written must not stop the emulator.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.log != nil {
		_, _ = o.log.Write(p)
	}
	o.tail = append(o.tail, p...)
	if !o.found && bytes.Contains(o.tail, []byte(running)) {
		o.found = true
		close(o.announced)
	}
	if over := len(o.tail) - tailSize; over > 0 {
		o.tail = append(o.tail[:0], o.tail[over:]...)
	}
	return len(p), nil
}

// String returns the end of the output.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(string(o.tail))
}
