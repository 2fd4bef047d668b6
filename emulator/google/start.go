package google

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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
	tailLines    = 50               // of its output, kept for errors

	startLimit    = 60 * time.Second // 1 to 4 s are usual
	startAttempts = 4
)

// guardScript runs the emulator in the script's process group, until the pipe on its standard
// input is closed: by Stop or, when this process ends, by the kernel. Then it kills the group,
// itself included. This works on Linux and macOS, and unlike a parent-death signal it does not
// depend on a thread. Only the emulator keeps the script's output open.
const guardScript = `"$@" </dev/null & exec >/dev/null 2>&1; while read -r line; do :; done; kill -s KILL 0`

// errEnded reports that the emulator's process ended without being stopped.
var errEnded = errors.New("google: the Firestore emulator ended by itself")

// Emulator is a running emulator. Its methods are safe for concurrent use.
type Emulator struct {
	host  string
	guard *exec.Cmd
	stdin io.Closer     // of guard
	ready chan struct{} // closed at the announcement
	ended chan struct{} // closed when the emulator has ended
	tail  []string      // the last lines of its output; complete when ended is closed
	stop  func() error  // end, once
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
			return nil, fmt.Errorf("google: %w", err)
		}
		err = e.await(ctx)
		if err == nil {
			return e, nil
		}
		if attempt == startAttempts || !errors.Is(err, errEnded) {
			return nil, err
		}
	}
}

// launch starts the emulator's process and returns without waiting for its port.
func (i Installation) launch(maxHeap string, port int) (*Emulator, error) {
	guard := exec.Command("/bin/sh", "-c", guardScript, "sh",
		i.Java,
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
	guard.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "_JAVA_OPTIONS=") })
	guard.Dir = "/"
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	stdin, err := guard.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	guard.Stdout, guard.Stderr = w, w
	if err = errors.Join(guard.Start(), w.Close()); err != nil {
		return nil, errors.Join(err, output.Close())
	}

	e := &Emulator{
		host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), guard: guard, stdin: stdin,
		ready: make(chan struct{}), ended: make(chan struct{}),
	}
	e.stop = sync.OnceValue(e.end)
	go e.follow(output)
	return e, nil
}

// follow reads the emulator's output to its end, which is the end of the emulator.
func (e *Emulator) follow(output io.ReadCloser) {
	defer close(e.ended)
	defer output.Close()
	announced := false
	for r := bufio.NewReader(output); ; {
		line, err := r.ReadString('\n')
		e.tail = append(e.tail, line)
		e.tail = e.tail[max(0, len(e.tail)-tailLines):]
		if !announced && strings.Contains(line, announcement) {
			announced = true
			close(e.ready)
		}
		if err != nil {
			return
		}
	}
}

// await waits until the emulator has announced that it has bound its port, or stops it. A
// successful connection would not prove that: another process may answer.
func (e *Emulator) await(ctx context.Context) error {
	select {
	case <-e.ready:
		return nil
	case <-e.ended:
		return e.Stop()
	case <-ctx.Done():
		_ = e.Stop() // ctx has the reason
		return e.failed(fmt.Errorf("google: the Firestore emulator did not start: %w", context.Cause(ctx)))
	}
}

// failed adds the end of the output of an emulator that has ended.
func (e *Emulator) failed(reason error) error {
	return fmt.Errorf("%w; its output ended with:\n%s", reason, strings.TrimSpace(strings.Join(e.tail, "")))
}

// Host returns the emulator's address as host:port, in the form that
// FIRESTORE_EMULATOR_HOST takes.
func (e *Emulator) Host() string { return e.host }

// Stop kills the emulator, whose data are in memory only, and returns when its
// process has ended. Calling Stop again returns the same. An error means that the
// emulator had ended by itself, and has the end of its output.
func (e *Emulator) Stop() error { return e.stop() }

func (e *Emulator) end() error {
	var early bool
	select {
	case <-e.ended:
		early = true
	default:
	}
	closed := e.stdin.Close()
	_ = e.guard.Wait() // killed by itself
	<-e.ended
	if early {
		return errors.Join(e.failed(errEnded), closed)
	}
	return closed
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
