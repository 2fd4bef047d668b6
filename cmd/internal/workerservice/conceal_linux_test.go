package workerservice

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// stage makes the test binary a worker with an ANALYZER, which then starts a program that tries to
// read the worker's environment. Neither is root, which may read all.
const stage = "CONCEAL_STAGE"

func init() {
	switch name, analyzer, _ := strings.Cut(os.Getenv(stage), " "); name {
	case "begin":
		const nobody = 65534
		if os.Getuid() == 0 && errors.Join(syscall.Setgid(nobody), syscall.Setuid(nobody)) != nil {
			panic("root remains root")
		}
		_ = os.Setenv(stage, "worker "+analyzer)
		panic(syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	case "worker":
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of a program
		if err != nil {
			panic(err)
		}
		// It has no project, and returns.
		_ = Serve(context.Background(), Config{AnalyzerSpec: analyzer}, l, slog.New(slog.DiscardHandler))

		files, err := os.ReadDir("/proc/self/fd")
		if err != nil || len(files) < 3 {
			panic(err)
		}
		program := exec.Command("/bin/sh", "-c", "cat /proc/$PPID/environ") //nolint:noctx // it ends
		program.Env, program.Stdout, program.Stderr = []string{"PATH=" + os.Getenv("PATH")}, os.Stdout, os.Stderr
		_ = program.Run()
		os.Exit(0)
	}
}

func TestServe_Conceals(t *testing.T) {
	for analyzer, readable := range map[string]bool{"exec:true": false, "builtin:document": true} {
		worker := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^$")
		worker.Env = append(os.Environ(), stage+"=begin "+analyzer, "TOKEN=s3cret")
		out, err := worker.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", analyzer, err, out)
		}
		got, denied := strings.Contains(string(out), "s3cret"), strings.Contains(string(out), "Permission denied")
		if got != readable || denied == readable {
			t.Errorf("%s: the program reads it: %v, want %v: %.300q", analyzer, got, readable, out)
		}
	}
}
