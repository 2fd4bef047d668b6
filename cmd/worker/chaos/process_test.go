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
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"taskguard/cmd/worker/service"
	"taskguard/emulator/emulatortest"
	"taskguard/emulator/firestore"
)

// role makes the test binary another program: the worker, as cmd/worker is, or
// the embedded Firestore.
const role = "CHAOS_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(emulatortest.Main(m))
	case "worker":
		go endWithParent()
		code, err := service.Main(context.Background(), os.LookupEnv, os.Stdout, nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	case "firestore":
		go endWithParent()
		fmt.Fprintln(os.Stderr, serveFirestore())
		os.Exit(1)
	}
}

// endWithParent ends the process when the test's has: nobody else holds the
// other end of its standard input.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(3)
}

func serveFirestore() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf(`{"message":"serving","address":%q}`+"\n", l.Addr())
	return firestore.NewServer(firestore.Options{}).Serve(l)
}

// process is the test binary in one of its roles. It leads a process group of
// its own: one that is orphaned, as when the shell that began the tests ends,
// is woken by the kernel if it is stopped.
type process struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	address string        // as it has said itself that it serves
	done    chan struct{} // closed when it has ended and its output is read
	output  bytes.Buffer  // to read after done
	stderr  bytes.Buffer
}

// startTimeout is for slow machines.
const startTimeout = time.Minute

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
	slow := time.NewTimer(startTimeout)
	defer slow.Stop()
	select {
	case p.address = <-address:
		return p, nil
	case <-p.done:
		err = fmt.Errorf("a %s ended at once: %s", as, p.stderr.String())
	case <-slow.C:
		err = fmt.Errorf("a %s does not serve", as)
	}
	p.end()
	return nil, err
}

// follow reads the process's output to its end, then waits for the process.
func (p *process) follow(out io.Reader, address chan<- string) {
	defer close(p.done)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		var entry struct{ Message, Address string }
		if json.Unmarshal(line, &entry) == nil && entry.Message == "serving" {
			_, port, _ := net.SplitHostPort(entry.Address)
			address <- net.JoinHostPort("127.0.0.1", port)
		}
		p.output.Write(line)
		if err != nil {
			break
		}
	}
	_ = p.cmd.Wait() // the state says how it ended
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

// terminated sends SIGTERM and answers what exited does.
func (p *process) terminated() int {
	if p.signal(syscall.SIGTERM) != nil {
		return -1
	}
	return p.exited()
}

// exited waits and answers the exit code, or -1 for a process that had to be
// killed because it does not end.
func (p *process) exited() int {
	hung := time.AfterFunc(30*time.Second, func() { _ = p.signal(syscall.SIGKILL) })
	defer hung.Stop()
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}
