package google

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// actor returns an installation whose java is this test binary, playing the part.
func actor(t *testing.T, part string) Installation {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Installation{Java: self, Jar: part}
}

func startActor(t *testing.T, part string) *Emulator {
	t.Helper()
	e, err := actor(t, part).start(t.Context(), Options{}, freePort)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Stop() })
	return e
}

// hasEnded reports whether the emulator's process has been waited for.
func hasEnded(e *Emulator) bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

func TestMain(m *testing.M) {
	if i := slices.Index(os.Args, mainClass); i > 0 {
		play(os.Args[i-1])
		os.Exit(1)
	}
	if len(os.Args) == 3 && os.Args[1] == mainClass+".parent" {
		os.Exit(parent(os.Args[2]))
	}
	os.Exit(m.Run())
}

// play is the main function of an emulator in a test. It returns when the
// emulator has come to grief.
func play(part string) {
	fmt.Println(strings.Join(os.Args, " "), "_JAVA_OPTIONS="+os.Getenv("_JAVA_OPTIONS"))
	if part == "doomed" {
		fmt.Println("SEVERE: doomed")
		return
	}
	if part == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	if part == "slow" {
		time.Sleep(10 * pollEvery) // time in which another's answer could pass for ours
	}
	port := strings.TrimPrefix(os.Args[len(os.Args)-1], "--port=")
	l, err := net.Listen("tcp4", "127.0.0.1:"+port)
	if err != nil {
		fmt.Println("SEVERE:", err)
		return
	}
	if part == "mute" {
		fmt.Println("MUTE", l.Addr())
	} else {
		fmt.Println("Dev App Server is now running.")
	}
	err = http.Serve(l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if part == "mortal" && r.URL.Path == "/end" {
			fmt.Println("out of memory")
			os.Exit(3)
		}
	}))
	fmt.Println(err)
}

// parent starts an emulator, says where, and ends as told without stopping it.
func parent(end string) int {
	self, err := os.Executable()
	if err != nil {
		return 1
	}
	e, err := Installation{Java: self, Jar: "obedient"}.start(context.Background(), Options{}, freePort)
	if err != nil {
		return 1
	}
	fmt.Println(e.Host())
	_, _ = io.Copy(io.Discard, os.Stdin)
	if end == "panics" {
		panic("as told")
	}
	return 0
}

// A listener keeps what is written to it and calls found once when it has heard
// the word and the line it is on.
type listener struct {
	word  string
	found func(line string)

	mu   sync.Mutex
	text strings.Builder
}

func (l *listener) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	_, after, ok := strings.Cut(l.text.String(), l.word)
	if line, _, ended := strings.Cut(after, "\n"); ok && ended && l.found != nil {
		l.found(line)
		l.found = nil
	}
	return len(p), nil
}

func (l *listener) heard() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
