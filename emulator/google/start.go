package google

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	defaultMaxHeap = "256m"
	startLimit     = 60 * time.Second // 1 to 4 s are usual
	startAttempts  = 4
	pollEvery      = 20 * time.Millisecond
	stopGrace      = 5 * time.Second // 0.4 s are usual
)

// errEnded says that the emulator's process ended without being stopped.
var errEnded = errors.New("google: the Firestore emulator ended by itself")

// Options say how the emulator is run. The zero value is usable.
type Options struct {
	// Log receives the emulator's output, from one goroutine, until Stop has
	// returned. nil: discarded, but for its end, which errors carry.
	Log io.Writer
	// MaxHeap is the most memory the Java heap may take, in Java's notation:
	// digits and one of k, m, g. Default "256m".
	MaxHeap string
}

// An Emulator is a running emulator. Its methods are safe for concurrent use.
type Emulator struct {
	host   string
	group  *group
	output *output
	grace  time.Duration // between TERM and KILL
	ended  chan struct{} // closed once the emulator's process has been waited for

	stop    sync.Once
	stopErr error
}

// Start finds the emulator and starts it on a free port of 127.0.0.1. It blocks
// until the emulator answers, usually 1 to 4 s, and gives up when ctx ends or
// after 60 s. ctx bounds the start alone: the emulator then runs until Stop, or
// until this process ends.
//
// An emulator that ends while starting, as one does whose port was taken between
// being chosen and being bound, is started again on another port, at most three
// times. Errors wrap [ErrNotFound] as [Find]'s do, or carry the end of the
// emulator's output.
func Start(ctx context.Context, o Options) (*Emulator, error) {
	found, err := thisMachine().find(ctx)
	if err != nil {
		return nil, err
	}
	return found.start(ctx, o, freePort)
}

var heapSize = regexp.MustCompile(`^[1-9][0-9]*[kKmMgG]$`)

func (i Installation) start(ctx context.Context, o Options, choosePort func() (int, error)) (*Emulator, error) {
	if o.MaxHeap == "" {
		o.MaxHeap = defaultMaxHeap
	}
	if !heapSize.MatchString(o.MaxHeap) {
		return nil, fmt.Errorf("google: MaxHeap %q is not digits and one of k, m, g", o.MaxHeap)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for attempt := 1; ; attempt++ {
		port, err := choosePort()
		if err != nil {
			return nil, fmt.Errorf("google: %w", err)
		}
		e, err := i.launch(o, port)
		if err != nil {
			return nil, err
		}
		if err = e.awaitAnswer(ctx); err == nil {
			return e, nil
		}
		_ = e.Stop() // says no more than err does
		if attempt == startAttempts || !errors.Is(err, errEnded) {
			return nil, err
		}
	}
}

// launch starts the emulator's process and returns without waiting for it to
// answer.
func (i Installation) launch(o Options, port int) (*Emulator, error) {
	g, err := newGroup()
	if err != nil {
		return nil, err
	}
	e := &Emulator{
		host:   net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		group:  g,
		output: newOutput(o.Log),
		grace:  stopGrace,
		ended:  make(chan struct{}),
	}
	cmd := exec.Command(i.Java, i.arguments(o.MaxHeap, port)...)
	cmd.Env = javaEnviron()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = e.output, e.output
	cmd.WaitDelay = time.Second
	g.join(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("google: %w", errors.Join(err, g.end()))
	}
	go func() {
		defer close(e.ended)
		// How it ended is of no use: by our signal, or early, and then its
		// output says why.
		_ = cmd.Wait()
	}()
	return e, nil
}

func (i Installation) arguments(maxHeap string, port int) []string {
	return []string{
		"-Xmx" + maxHeap,
		"-XX:+UseSerialGC",
		"-XX:+ExitOnOutOfMemoryError",
		"-XX:-UsePerfData",   // or a killed one leaves a file in /tmp
		"-Duser.language=en", // its messages exist in English alone
		"-cp", i.Jar, mainClass,
		"--host=127.0.0.1",
		"--port=" + strconv.Itoa(port),
	}
}

// javaEnviron is our environment without _JAVA_OPTIONS, which would override the
// bound on the heap.
func javaEnviron() []string {
	var kept []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "_JAVA_OPTIONS=") {
			kept = append(kept, v)
		}
	}
	return kept
}

// awaitAnswer returns nil once the emulator has bound its port and answers on it.
// The announcement comes first: an answer alone might be another process's, on a
// port that ours is about to find taken.
func (e *Emulator) awaitAnswer(ctx context.Context) error {
	announced := e.output.announced
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	bound := false
	for {
		select {
		case <-announced:
			bound, announced = true, nil
		case <-poll.C:
		case <-e.ended:
			return fmt.Errorf("%w while starting; its output ended with:\n%s", errEnded, e.output)
		case <-ctx.Done():
			return fmt.Errorf("google: the Firestore emulator did not answer: %w; its output ended with:\n%s",
				context.Cause(ctx), e.output)
		}
		if bound && answers(ctx, e.host) {
			return nil
		}
	}
}

// answers reports whether an HTTP server at host answers as the emulator does.
func answers(ctx context.Context, host string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/", http.NoBody)
	if err != nil {
		return false
	}
	req.Close = true
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Host returns the emulator's address as host:port, in the form that
// FIRESTORE_EMULATOR_HOST takes.
func (e *Emulator) Host() string { return e.host }

// Stop ends the emulator, with TERM and if it is still there after 5 s with KILL,
// and returns when its process is gone. Its data is lost. Calling Stop again, or
// from several goroutines, does nothing more and returns the same. The error says
// that the emulator had ended by itself before, and how its output ended.
func (e *Emulator) Stop() error {
	e.stop.Do(func() { e.stopErr = e.end() })
	return e.stopErr
}

func (e *Emulator) end() error {
	var early error
	select {
	case <-e.ended:
		early = fmt.Errorf("%w; its output ended with:\n%s", errEnded, e.output)
	default:
	}
	termed := e.group.signal(syscall.SIGTERM)
	grace := time.NewTimer(e.grace)
	defer grace.Stop()
	select {
	case <-e.ended:
	case <-grace.C:
	}
	killed := e.group.end()
	<-e.ended
	return errors.Join(early, termed, killed)
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
