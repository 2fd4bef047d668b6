package google

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestStartReturnsOnceTheEmulatorAnswers(t *testing.T) {
	e := startActor(t, "obedient")
	if !answers(t.Context(), e.Host()) {
		t.Errorf("nothing answers at %s", e.Host())
	}
	if err := e.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if answers(t.Context(), e.Host()) {
		t.Errorf("%s still answers after Stop", e.Host())
	}
}

func TestStartTriesAnotherPortWhenAnotherProcessTookTheFirst(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	// The other process answers as an emulator would: it must not pass for ours.
	other := http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) })}
	served := make(chan error, 1)
	go func() { served <- other.Serve(l) }()
	defer func() { _ = other.Close(); <-served }()

	ports := []int{l.Addr().(*net.TCPAddr).Port}
	e, err := actor(t, "slow").start(t.Context(), Options{}, func() (int, error) {
		if len(ports) == 0 {
			return freePort()
		}
		p := ports[0]
		ports = nil
		return p, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	if e.Host() == l.Addr().String() {
		t.Errorf("the emulator is said to be at %s, where another process listens", e.Host())
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the other process was asked %d times, want 0", n)
	}
}

func TestStartGivesUpAfterFourEmulatorsThatEndEarly(t *testing.T) {
	tried := 0
	_, err := actor(t, "doomed").start(t.Context(), Options{}, func() (int, error) { tried++; return freePort() })
	if !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "SEVERE: doomed") {
		t.Errorf("error %v, want that it ended and the end of its output", err)
	}
	if tried != 4 {
		t.Errorf("%d attempts, want 4", tried)
	}
}

func TestStartEndsWithItsContextAndLeavesNoProcess(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	gone := errors.New("no longer wanted")
	heard := &listener{word: "MUTE ", found: func(string) { cancel(gone) }}
	_, err := actor(t, "mute").start(ctx, Options{Log: heard}, freePort)
	if !errors.Is(err, gone) || !strings.Contains(err.Error(), "MUTE") {
		t.Errorf("error %v, want the cause and the end of the output", err)
	}
	_, host, _ := strings.Cut(heard.heard(), "MUTE ")
	if host = strings.TrimSpace(host); answers(t.Context(), host) {
		t.Errorf("the emulator still answers at %s", host)
	}
}

func TestStartRefusesAHeapThatIsNoBound(t *testing.T) {
	for _, heap := range []string{"256", "0m", "-1m", "256mb", "256m -Xmx9g", "m"} {
		_, err := actor(t, "obedient").start(t.Context(), Options{MaxHeap: heap}, freePort)
		if err == nil || !strings.Contains(err.Error(), "MaxHeap") {
			t.Errorf("MaxHeap %q: error %v, want it refused", heap, err)
		}
	}
}

func TestTheEmulatorRunsWithABoundedHeapOnLoopback(t *testing.T) {
	t.Setenv("_JAVA_OPTIONS", "-Xmx9g")
	for heap, want := range map[string]string{"": "-Xmx256m", "1g": "-Xmx1g"} {
		heard := &listener{word: "\n"}
		e, err := actor(t, "obedient").start(t.Context(), Options{Log: heard, MaxHeap: heap}, freePort)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
		first, _, _ := strings.Cut(heard.heard(), "\n")
		args := strings.Fields(first)
		for _, want := range []string{want, "-XX:+UseSerialGC", "--host=127.0.0.1", "_JAVA_OPTIONS="} {
			if !slices.Contains(args, want) {
				t.Errorf("with MaxHeap %q it runs as %q, without %q", heap, args, want)
			}
		}
	}
}

func TestStopKillsAnEmulatorThatIgnoresTERM(t *testing.T) {
	e := startActor(t, "stubborn")
	e.grace = time.Millisecond
	if err := e.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if !hasEnded(e) {
		t.Error("Stop returned before the emulator's process had ended")
	}
	if answers(t.Context(), e.Host()) {
		t.Errorf("%s still answers after Stop", e.Host())
	}
}

func TestStopDoesNotNeedTheGuard(t *testing.T) {
	e := startActor(t, "stubborn")
	e.grace = time.Millisecond
	if err := e.group.guard.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := e.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

func TestTheGuardOutlivesTheSignalsOthersEndAt(t *testing.T) {
	g, err := newGroup()
	if err != nil {
		t.Fatal(err)
	}
	// More than a pipe holds: once it is written the guard reads, and so has set
	// itself up.
	if _, err := g.lifeline.Write(bytes.Repeat([]byte("\n"), 128<<10)); err != nil {
		t.Fatal(err)
	}
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		if err := g.signal(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.lifeline.Close(); err != nil {
		t.Fatal(err)
	}
	_ = g.guard.Wait()
	if got, want := g.guard.ProcessState.Sys().(syscall.WaitStatus).Signal(), syscall.SIGKILL; got != want {
		t.Errorf("the guard ended at %v, want %v, its own", got, want)
	}
}

func TestConcurrentStopsEachWaitForTheEnd(t *testing.T) {
	e := startActor(t, "obedient")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := e.Stop(); err != nil {
				t.Errorf("Stop: %v", err)
			}
			if !hasEnded(e) {
				t.Error("Stop returned before the emulator's process had ended")
			}
		})
	}
	wg.Wait()
}

func TestStopReportsAnEmulatorThatHadEndedByItself(t *testing.T) {
	e := startActor(t, "mortal")
	resp, err := http.Get("http://" + e.Host() + "/end")
	if err == nil {
		resp.Body.Close()
	}
	<-e.ended
	for range 2 {
		if err := e.Stop(); !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "out of memory") {
			t.Errorf("Stop: %v, want that it ended by itself and the end of its output", err)
		}
	}
}

func TestTheEmulatorEndsWithItsParentHoweverThatEnds(t *testing.T) {
	for _, end := range []string{"killed", "exits", "panics"} {
		t.Run(end, func(t *testing.T) {
			parent := exec.CommandContext(t.Context(), os.Args[0], mainClass+".parent", end)
			orders, err := parent.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := parent.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			host, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp", strings.TrimSpace(host))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if end == "killed" {
				err = parent.Process.Kill()
			} else {
				err = orders.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = parent.Wait()
			// Read returns when the kernel has closed the emulator's sockets.
			if n, err := conn.Read(make([]byte, 1)); n != 0 {
				t.Errorf("the emulator sent a byte, want none (%v)", err)
			}
		})
	}
}

func TestOutputKeepsItsEndAndHearsASplitAnnouncement(t *testing.T) {
	o := newOutput(nil)
	write := func(text string) {
		if n, err := io.WriteString(o, text); n != len(text) || err != nil {
			t.Fatalf("Write returned %d, %v, want %d", n, err, len(text))
		}
	}
	for range 3 {
		write(strings.Repeat("x", tailSize-1))
	}
	for _, c := range running {
		select {
		case <-o.announced:
			t.Fatal("announced before all of the words were written")
		default:
		}
		write(string(c))
	}
	select {
	case <-o.announced:
	default:
		t.Error("not announced")
	}
	write(running) // again: no second close
	if got := o.String(); len(got) != tailSize || !strings.HasSuffix(got, running+running) {
		t.Errorf("kept %d bytes that end in %q, want %d and the announcements", len(got), got[len(got)-30:], tailSize)
	}
}
