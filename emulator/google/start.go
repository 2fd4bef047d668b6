package google

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// mainClass is the emulator's entry point: the Cloud SDK's jar has no
	// Main-Class.
	mainClass    = "com.google.cloud.datastore.emulator.firestore.CloudFirestore"
	announcement = "is now running" // printed once the emulator has bound its port
	tailBytes    = 8 << 10          // of its output, kept for errors

	startLimit    = 60 * time.Second // 1 to 4 s are usual
	startAttempts = 4
)

// errEnded reports that the emulator's process ended without being stopped.
var errEnded = errors.New("google: the Firestore emulator ended by itself")

// Emulator is a running emulator. Its methods are safe for concurrent use.
type Emulator struct {
	host   string
	group  *group
	output *output
	ended  chan struct{} // closed once the emulator's process has been waited for
	stop   func() error  // end, once
}

// Start finds the emulator and starts it on a free port of 127.0.0.1, with a Java
// heap of at most maxHeap: digits and one of k, m, g. It blocks until the emulator
// has bound its port, usually 1 to 4 s, and gives up when ctx ends or after 60 s.
// ctx bounds the start alone: the emulator then runs until Stop, or until this
// process ends.
//
// Another process may take the port before the emulator has bound it. An emulator that
// ends while starting is therefore started again on another port, at most three times.
// Errors are those of [Find], or have the end of the emulator's output.
func Start(ctx context.Context, maxHeap string) (*Emulator, error) {
	found, err := Find()
	if err != nil {
		return nil, err
	}
	return found.start(ctx, maxHeap, freePort)
}

func (i Installation) start(ctx context.Context, maxHeap string, choosePort func() (int, error)) (*Emulator, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for attempt := 1; ; attempt++ {
		port, err := choosePort()
		if err != nil {
			return nil, fmt.Errorf("google: %w", err)
		}

		e, err := i.launch(maxHeap, port)
		if err != nil {
			return nil, err
		}
		if err = e.await(ctx); err == nil {
			return e, nil
		}
		_ = e.Stop() // err is more specific
		if attempt == startAttempts || !errors.Is(err, errEnded) {
			return nil, err
		}
	}
}

// launch starts the emulator's process and returns without waiting for its port.
func (i Installation) launch(maxHeap string, port int) (*Emulator, error) {
	g, err := newGroup()
	if err != nil {
		return nil, err
	}

	e := &Emulator{
		host:   net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		group:  g,
		output: &output{announced: make(chan struct{})},
		ended:  make(chan struct{}),
	}
	e.stop = sync.OnceValue(e.end)

	cmd := exec.Command(i.Java,
		"-Xmx"+maxHeap,
		"-XX:+UseSerialGC",
		"-XX:TieredStopAtLevel=1", // a start takes a quarter less work
		"-XX:+ExitOnOutOfMemoryError",
		"-XX:-UsePerfData",   // otherwise a killed one leaves a file in /tmp
		"-Duser.language=en", // for the announcement
		"-cp", i.Jar, mainClass,
		"--host=127.0.0.1",
		"--port="+strconv.Itoa(port),
	)
	// _JAVA_OPTIONS would override the bound on the heap.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "_JAVA_OPTIONS=") })
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = e.output, e.output
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: g.guard.Process.Pid}

	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("google: %w", errors.Join(err, g.end()))
	}
	go func() {
		defer close(e.ended)
		_ = cmd.Wait() // if it has ended by itself, its output has the reason
	}()
	return e, nil
}

// await waits until the emulator has announced that it has bound its port. A successful
// connection would not prove that: another process may answer.
func (e *Emulator) await(ctx context.Context) error {
	select {
	case <-e.output.announced:
		return nil
	case <-e.ended:
		return e.failed(errEnded)
	case <-ctx.Done():
		return e.failed(fmt.Errorf("google: the Firestore emulator did not start: %w", context.Cause(ctx)))
	}
}

func (e *Emulator) failed(reason error) error {
	return fmt.Errorf("%w; its output ended with:\n%s", reason, e.output)
}

// Host returns the emulator's address as host:port, in the form that
// FIRESTORE_EMULATOR_HOST takes.
func (e *Emulator) Host() string { return e.host }

// Stop kills the emulator, whose data are in memory only, and returns when its
// process has ended. Calling Stop again returns the same. An error means that the
// emulator had ended by itself, and has the end of its output.
func (e *Emulator) Stop() error { return e.stop() }

func (e *Emulator) end() error {
	var early error
	select {
	case <-e.ended:
		early = e.failed(errEnded)
	default:
	}
	defer func() { <-e.ended }()
	return errors.Join(early, e.group.end())
}

// freePort returns a port of 127.0.0.1 that was free a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// output keeps the end of the emulator's output, and detects the announcement.
// It is safe for concurrent use.
type output struct {
	announced chan struct{} // closed at the announcement

	mu   sync.Mutex
	tail []byte
	once sync.Once
}

// Write keeps the end of p. It never fails.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail = append(o.tail, p...)
	if bytes.Contains(o.tail, []byte(announcement)) {
		o.once.Do(func() { close(o.announced) })
	}
	o.tail = slices.Delete(o.tail, 0, max(0, len(o.tail)-tailBytes))
	return len(p), nil
}

// String returns the end of the output.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(string(o.tail))
}
