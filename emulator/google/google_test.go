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
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const parentVariable = "TASKGUARD_TEST_EMULATOR_PARENT"

// TestMain makes the test binary, where it is started so, an emulator or a parent
// of one.
func TestMain(m *testing.M) {
	if i := slices.Index(os.Args, mainClass); i > 0 {
		play(os.Args[i-1])
		os.Exit(1)
	}
	if os.Getenv(parentVariable) != "" {
		os.Exit(parent())
	}
	os.Exit(m.Run())
}

// actor returns an installation whose java is this test binary in the given part.
func actor(t *testing.T, part string) Installation {
	t.Helper()
	self := must(os.Executable())(t)
	return Installation{Java: self, Jar: part}
}

func startActor(t *testing.T, part string) *Emulator {
	t.Helper()
	e := must(actor(t, part).start(t.Context(), "256m", freePort))(t)
	t.Cleanup(func() { _ = e.Stop() })
	return e
}

// play is the main function of an emulator in a test.
func play(part string) {
	fmt.Println(strings.Join(os.Args, " "), "_JAVA_OPTIONS="+os.Getenv("_JAVA_OPTIONS"))
	if part == "failing" {
		fmt.Println("SEVERE: failed")
		return
	}
	port := strings.TrimPrefix(os.Args[len(os.Args)-1], "--port=")
	l, err := net.Listen("tcp4", "127.0.0.1:"+port)
	if err != nil {
		fmt.Println("SEVERE:", err)
		return
	}
	if part != "silent" {
		fmt.Print("Dev App Server is n")
		time.Sleep(10 * time.Millisecond)
		fmt.Println("ow running.")
	}
	conn, err := l.Accept()
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, conn)
	fmt.Println("out of memory")
}

// parent starts an emulator, prints its address, and never stops it.
func parent() int {
	self, _ := os.Executable()
	e, err := Installation{Java: self, Jar: "obedient"}.start(context.Background(), "256m", freePort)
	if err != nil {
		return 1
	}
	fmt.Println(e.Host())
	select {}
}

func listens(host string) bool {
	conn, err := net.Dial("tcp", host)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

func TestStartTriesAnotherPortWhenAnotherProcessTookTheFirst(t *testing.T) {
	l := must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	ports := []int{l.Addr().(*net.TCPAddr).Port}
	e, err := actor(t, "obedient").start(t.Context(), "256m", func() (int, error) {
		if len(ports) == 0 {
			return freePort()
		}
		p := ports[0]
		ports = nil
		return p, nil
	})
	check(t, err)
	if e.Host() == l.Addr().String() {
		t.Errorf("the emulator is reported at %s, where another process listens", e.Host())
	}
	if err := e.Stop(); err != nil {
		t.Error(err)
	}
}

func TestStartGivesUpAfterFourEmulatorsThatEndEarly(t *testing.T) {
	tried := 0
	_, err := actor(t, "failing").start(t.Context(), "256m", func() (int, error) { tried++; return freePort() })
	if !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "SEVERE: failed") {
		t.Errorf("error %v, want that it ended and the end of its output", err)
	}
	if tried != 4 {
		t.Errorf("%d attempts, want 4", tried)
	}
}

func TestStartEndsWithItsContextAndLeavesNoProcess(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var port int
	_, err := actor(t, "silent").start(ctx, "256m", func() (p int, err error) { port, err = freePort(); return port, err })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
	if host := fmt.Sprint("127.0.0.1:", port); listens(host) {
		t.Errorf("the emulator still listens at %s", host)
	}
}

func TestTheEmulatorRunsWithABoundedHeapOnLoopback(t *testing.T) {
	t.Setenv("_JAVA_OPTIONS", "-Xmx9g")
	e := startActor(t, "obedient")
	if err := e.Stop(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"-Xmx256m", "-XX:+UseSerialGC", "--host=127.0.0.1", "_JAVA_OPTIONS="} {
		if !slices.Contains(strings.Fields(e.tail[0]), want) {
			t.Errorf("it runs as %q, without %q", e.tail[0], want)
		}
	}
}

func TestStopEndsTheEmulatorOnce(t *testing.T) {
	e := startActor(t, "obedient")
	for range 2 {
		if err := e.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	}
	if listens(e.Host()) {
		t.Errorf("the emulator still listens at %s after Stop", e.Host())
	}
}

func TestStopReportsAnEmulatorThatHadEndedByItself(t *testing.T) {
	e := startActor(t, "obedient")
	if !listens(e.Host()) { // the actor ends after one connection
		t.Fatal("the emulator does not listen")
	}
	<-e.ended
	if err := e.Stop(); !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("Stop: %v, want that it ended by itself and the end of its output", err)
	}
}

func TestTheEmulatorEndsWithItsKilledParent(t *testing.T) {
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), parentVariable+"=1")
	out := must(parent.StdoutPipe())(t)
	check(t, parent.Start())
	host := must(bufio.NewReader(out).ReadString('\n'))(t)
	conn := must(net.Dial("tcp", strings.TrimSpace(host)))(t)
	defer conn.Close()
	check(t, parent.Process.Kill())
	_ = parent.Wait()
	// Read returns when the kernel has closed the emulator's sockets.
	if n, err := conn.Read(make([]byte, 1)); n != 0 {
		t.Errorf("the emulator sent a byte, want none (%v)", err)
	}
}

// machine makes a machine with a Java runtime alone, and returns a directory in
// which a test can put jars.
func machine(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "jdk", "bin", "java"), "#!/bin/sh\n")
	write(t, filepath.Join(dir, "gcloud", "bin", "gcloud"), "#!/bin/sh\n")
	check(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o700))
	check(t, os.Symlink(filepath.Join(dir, "gcloud", "bin", "gcloud"), filepath.Join(dir, "bin", "gcloud")))
	t.Setenv("JAVA_HOME", filepath.Join(dir, "jdk"))
	t.Setenv("PATH", filepath.Join(dir, "bin")+":/usr/bin:/bin")
	t.Setenv(jarVariable, "")
	t.Setenv(hideVariable, "")
	return dir
}

func write(t *testing.T, path, content string) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o700))
	check(t, os.WriteFile(path, []byte(content), 0o700))
}

func TestFindTakesTheNamedJarBeforeTheOneOfGcloudOnPath(t *testing.T) {
	dir := machine(t)
	sdkJar := filepath.Join(dir, "gcloud", "platform", "cloud-firestore-emulator", "cloud-firestore-emulator.jar")
	write(t, sdkJar, "jar")
	if got, err := Find(); err != nil || got.Jar != sdkJar {
		t.Errorf("found %s, %v, want %s", got.Jar, err, sdkJar)
	}
	named := filepath.Join(dir, "named.jar")
	t.Setenv(jarVariable, named)
	if _, err := Find(); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("a named jar that does not exist: error %v, want one that is not ErrNotFound", err)
	}
	write(t, named, "jar")
	if got, err := Find(); err != nil || got.Jar != named {
		t.Errorf("found %s, %v, want %s", got.Jar, err, named)
	}
	t.Setenv(hideVariable, "1")
	if _, err := Find(); !errors.Is(err, ErrNotFound) {
		t.Errorf("hidden: error %v, want ErrNotFound", err)
	}
}

func TestFindNeedsAJavaThatRuns(t *testing.T) {
	dir := machine(t)
	write(t, filepath.Join(dir, "named.jar"), "jar")
	t.Setenv(jarVariable, filepath.Join(dir, "named.jar"))
	write(t, filepath.Join(dir, "jdk", "bin", "java"), "#!/bin/sh\nexit 1\n")
	if _, err := Find(); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "JAVA_HOME") {
		t.Errorf("error %v, want ErrNotFound that names JAVA_HOME", err)
	}
}

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns the value of a call that has to succeed.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}
