//go:build linux || darwin

package orchestrator_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// asProgram as the first argument makes the test binary one of these programs,
// named by the second. Those with a FILE call markAlive with it.
const asProgram = "as-program"

var programs = map[string]func(args []string){
	"flood":    flood,
	"obedient": obedient,
	"ignorer":  ignorer,
	"parent":   parent,
	"exiter":   exiter,
	"escaper":  escaper,
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// markAlive writes a line to a file and keeps a shared lock on it, which the kernel
// releases when the process ends.
func markAlive(file, who string) {
	f := must(os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600))
	check(syscall.Flock(int(f.Fd()), syscall.LOCK_SH))
	must(fmt.Fprintln(f, who))
	kept = append(kept, f)
}

// kept keeps the files from being closed as garbage.
var kept []*os.File

// flood STDOUT|STDERR writes for ever.
func flood(args []string) {
	to := os.Stdout
	if args[0] == "stderr" {
		to = os.Stderr
	}
	for line := strings.Repeat("x", 1023) + "\n"; ; {
		must(to.WriteString(line))
	}
}

// obedient FILE stops at SIGTERM and writes a line about it.
func obedient(args []string) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	markAlive(args[0], "obedient")
	<-asked
	markAlive(args[0], "got SIGTERM")
	must(os.Stdout.WriteString(`"too late"`))
}

// ignorer FILE ignores SIGTERM.
func ignorer(args []string) {
	signal.Ignore(syscall.SIGTERM)
	markAlive(args[0], "ignorer")
	for {
		time.Sleep(time.Hour)
	}
}

// spawn starts another of the programs with this one's standard output, and
// waits until it has written its line.
func spawn(file, name string) *exec.Cmd {
	before := len(must(os.ReadFile(file)))
	c := exec.Command(os.Args[0], asProgram, name, file)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	check(c.Start())
	for len(must(os.ReadFile(file))) == before {
		time.Sleep(time.Millisecond)
	}
	return c
}

// parent FILE has an ignorer child and waits for it.
func parent(args []string) {
	markAlive(args[0], "parent")
	child := spawn(args[0], "ignorer")
	markAlive(args[0], "ready")
	_ = child.Wait()
}

// exiter FILE CHILD STATUS exits while a child holds its standard output.
func exiter(args []string) {
	markAlive(args[0], "exiter")
	must(os.Stdout.WriteString(`{"left":`))
	spawn(args[0], args[1])
	must(os.Stdout.WriteString(`"behind"}`))
	must(os.Stderr.WriteString("left behind"))
	os.Exit(must(strconv.Atoi(args[2])))
}

// escaper FILE CHILD… exits while a child outside its group holds its standard input
// and output and REPORT_FD. It writes the process id of the child to the file.
func escaper(args []string) {
	must(os.Stdout.WriteString(`"escaped"`))
	c := exec.Command(os.Args[0], append([]string{asProgram}, args[1:]...)...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.ExtraFiles = []*os.File{os.NewFile(3, "reports")}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	check(c.Start())
	check(os.WriteFile(args[0], fmt.Appendln(nil, c.Process.Pid), 0o600))
}
