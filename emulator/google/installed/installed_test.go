package installed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

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

func TestTheEmulatorKeepsADocumentInABoundedHeapAndEndsWithItsKilledParent(t *testing.T) {
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
	keepDocument(t, host)
	id := groupOf(t, host)
	running := members(t, id)
	for _, want := range []string{" -Xmx256m ", " -XX:+UseSerialGC ", " --host=127.0.0.1 "} {
		if !strings.Contains(strings.Join(running, "\n"), want) {
			t.Errorf("the emulator runs as %q, without %q", running, want)
		}
	}
	if len(running) != 2 {
		t.Errorf("processes %q in the emulator's group, want itself and its guard", running)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	left := members(t, id)
	for end := time.Now().Add(5 * time.Second); len(left) > 0 && time.Now().Before(end); left = members(t, id) {
		time.Sleep(10 * time.Millisecond)
	}
	if len(left) > 0 {
		t.Errorf("processes left after the parent was killed: %q", left)
	}
}

// keepDocument writes a document and reads it.
func keepDocument(t *testing.T, host string) {
	t.Helper()
	conn, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client, err := firestore.NewClient(t.Context(), emulatortest.Project(), option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	doc := client.Doc("notes/one")
	if _, err := doc.Set(t.Context(), map[string]any{"text": "kept"}); err != nil {
		t.Fatal(err)
	}
	if snap, err := doc.Get(t.Context()); err != nil || snap.Data()["text"] != "kept" {
		t.Errorf("the document holds %v (%v), want kept", snap.Data(), err)
	}
}

// parent starts the emulator, says where, and never stops it.
func parent() int {
	e, err := google.Start(context.Background(), "256m")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(e.Host())
	select {}
}

// groupOf returns the id of the process group of the emulator at host.
func groupOf(t *testing.T, host string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes(t) {
		if strings.HasSuffix(p, "--port="+port) {
			return strings.Fields(p)[0]
		}
	}
	t.Fatalf("no process has --port=%s", port)
	return ""
}

// members returns the processes of a group.
func members(t *testing.T, id string) []string {
	t.Helper()
	return slices.DeleteFunc(processes(t), func(p string) bool { return strings.Fields(p)[0] != id })
}

// processes returns the group, state and command line of every process except
// the zombies.
func processes(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-A", "-ww", "-o", "pgid=,stat=,args=").Output()
	if err != nil {
		t.Fatalf("ps: %v", err)
	}
	var alive []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(strings.Fields(line)[1], "Z") {
			alive = append(alive, line)
		}
	}
	return alive
}
