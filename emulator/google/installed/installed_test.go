package installed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/emulator/google"
)

// parentVariable set makes this test binary a process that starts the emulator,
// prints its address and waits to be killed.
const parentVariable = "TASKGUARD_TEST_EMULATOR_PARENT"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv(parentVariable) != "" {
		return parent()
	}
	_, err := google.Find()
	switch {
	case err == nil:
		return emulatortest.Main(m)
	case !errors.Is(err, google.ErrNotFound):
		fmt.Fprintln(os.Stderr, err)
		return 1
	case emulatortest.Required():
		fmt.Fprintf(os.Stderr, "REQUIRE_GOOGLE_EMULATOR is set, but %v\n", err)
		return 1
	}
	fmt.Printf("Skipped: the tests that start Google's Firestore emulator and,"+
		" unless FIRESTORE_EMULATOR_HOST names a running one, the conformance suites on it: %v\n", err)
	// The words that make go test say [no tests to run] behind this package's
	// ok. Without them it hides the output of packages that pass.
	fmt.Println("testing: warning: no tests to run")
	return 0
}

func TestTheEmulatorKeepsADocument(t *testing.T) {
	e := start(t)
	doc := document(e.Host(), emulatortest.Project(t))
	if got := write(t, doc, "kept"); got != http.StatusOK {
		t.Fatalf("writing a document: status %d, want 200", got)
	}
	if got, want := read(t, doc), "kept"; got != want {
		t.Errorf("the document holds %q, want %q", got, want)
	}
}

func TestTheHeapIsBoundedAndStopLeavesNoProcess(t *testing.T) {
	e := start(t)
	id := groupOf(t, e.Host())
	running := members(t, id)
	java := ""
	for _, m := range running {
		if strings.Contains(m, "CloudFirestore") {
			java = m
		}
	}
	for _, want := range []string{" -Xmx256m ", " -XX:+UseSerialGC ", " --host=127.0.0.1 "} {
		if !strings.Contains(java, want) {
			t.Errorf("the emulator runs as %q, without %q", java, want)
		}
	}
	if got, want := len(running), 2; got != want {
		t.Errorf("%d processes in the emulator's group, want %d, itself and its guard: %q", got, want, running)
	}
	if err := e.Stop(); err != nil {
		t.Fatal(err)
	}
	if left := members(t, id); len(left) > 0 {
		t.Errorf("processes left after Stop: %q", left)
	}
}

func TestAnEmulatorStartedAgainIsEmpty(t *testing.T) {
	project := emulatortest.Project(t)
	first := start(t)
	if got := write(t, document(first.Host(), project), "gone"); got != http.StatusOK {
		t.Fatalf("writing a document: status %d, want 200", got)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	second := start(t)
	if got := read(t, document(second.Host(), project)); got != "" {
		t.Errorf("a new emulator holds %q, want nothing", got)
	}
}

func TestTheEmulatorDiesWithItsKilledParent(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), parentVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the parent printed no address: %v", err)
	}
	host := strings.TrimSpace(line)
	id := groupOf(t, host)
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	// The kernel closes the emulator's sockets in no order to rely on: first this
	// connection ends, then nothing listens.
	if n, err := io.Copy(io.Discard, conn); n > 0 {
		t.Errorf("the emulator sent %d bytes, want none (%v)", n, err)
	}
	for {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			break
		}
		conn.Close()
	}
	left := members(t, id)
	for end := time.Now().Add(5 * time.Second); len(left) > 0 && time.Now().Before(end); left = members(t, id) {
		time.Sleep(10 * time.Millisecond) // the sockets close before the processes are gone
	}
	if len(left) > 0 {
		t.Errorf("processes left after the parent was killed: %q", left)
	}
}

func TestConcurrentTestsShareOneEmulatorAndNoProject(t *testing.T) {
	var hosts, projects [8]string
	var wg sync.WaitGroup
	for i := range hosts {
		wg.Go(func() {
			hosts[i], projects[i] = emulatortest.Google(t), emulatortest.Project(t)
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for i, host := range hosts {
		if host != hosts[0] {
			t.Errorf("two emulators, %s and %s, want one", hosts[0], host)
		}
		if seen[projects[i]] {
			t.Errorf("project %s was given twice", projects[i])
		}
		seen[projects[i]] = true
	}
	doc := document(hosts[0], projects[0])
	if got := write(t, doc, "mine"); got != http.StatusOK {
		t.Fatalf("writing a document: status %d, want 200", got)
	}
	if got := read(t, document(hosts[1], projects[1])); got != "" {
		t.Errorf("another test's project holds %q, want nothing", got)
	}
}

// parent starts the emulator, says where, and never stops it.
func parent() int {
	e, err := google.Start(context.Background(), google.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(e.Host())
	select {}
}

func start(t *testing.T) *google.Emulator {
	t.Helper()
	e, err := google.Start(t.Context(), google.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	return e
}
