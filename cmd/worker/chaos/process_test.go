package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/cmd/internal/workerservice"
	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
)

// role makes the test binary another program: the worker, as cmd/worker is, the embedded
// Firestore, or the analyzer that a worker runs.
const role = "CHAOS_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(emulatortest.Main(m))
	case "worker":
		go endWithParent()
		code, err := workerservice.Main(context.Background(), os.LookupEnv, os.Stdout)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	case "firestore":
		go endWithParent()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			fmt.Printf(`{"message":"serving","address":%q}`+"\n", l.Addr())
			err = firestore.NewServer(firestore.Options{}).Serve(l)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case "analyzer":
		code, err := analyze(os.Args[1], os.Args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}
}

// endWithParent ends the process when the test has ended: then its standard input is
// closed.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(3)
}

// process is the test binary in one of its roles. It leads a process group of
// its own: the kernel wakes a stopped process whose group is orphaned, as when
// the shell that began the tests ends.
type process struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	address string        // as it has logged
	done    chan struct{} // closed when it has ended
	stderr  bytes.Buffer  // to read after done
}

// start starts a process and waits until it serves.
func start(as string, env ...string) (*process, error) {
	p := &process{cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	p.cmd.Env = append([]string{role + "=" + as, "PATH=" + os.Getenv("PATH")}, env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = time.Second

	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}

	address := make(chan string, 1)
	go p.follow(out, address)
	select {
	case p.address = <-address:
		return p, nil
	case <-p.done:
		err = fmt.Errorf("a %s ended at once: %s", as, p.stderr.String())
	case <-time.After(waitLimit):
		err = fmt.Errorf("a %s does not serve", as)
	}
	p.end()
	return nil, err
}

// follow reads the process's output to its end, then waits for the process.
func (p *process) follow(out io.Reader, address chan<- string) {
	defer close(p.done)
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		var entry struct{ Message, Address string }
		if json.Unmarshal(line, &entry) == nil && entry.Message == "serving" {
			_, port, _ := net.SplitHostPort(entry.Address)
			address <- net.JoinHostPort("127.0.0.1", port)
		}
		if err != nil {
			break
		}
	}
	_ = p.cmd.Wait() // the state shows how it ended
}

func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v: %w", s, err)
	}
	return nil
}

// end kills the process if it is still there.
func (p *process) end() {
	_ = p.signal(syscall.SIGKILL)
	<-p.done
	_ = p.stdin.Close()
}

// terminate sends SIGTERM, and returns an error unless the exit code is 0.
func (p *process) terminate() error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	hung := time.AfterFunc(30*time.Second, func() { _ = p.signal(syscall.SIGKILL) })
	defer hung.Stop()
	<-p.done
	_ = p.stdin.Close()
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("exit %d after SIGTERM: %s", code, p.stderr.String())
	}
	return nil
}

// reply is a worker's answer: "200 {…}", or why there was none.
type reply string

func (r reply) is(code int, reason string) bool {
	return strings.HasPrefix(string(r), fmt.Sprint(code)) && strings.Contains(string(r), reason)
}

func post(ctx context.Context, address, route, body string) reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+route, strings.NewReader(body))
	if err != nil {
		return reply(err.Error())
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply(err.Error())
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply(err.Error())
	}
	return reply(fmt.Sprint(resp.StatusCode, " ", strings.TrimSpace(string(text))))
}

// waitLimit is how long a test waits for an event that is due at once or after one TTL.
const waitLimit = time.Minute

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
