package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
)

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// streams are a command's standard input, output and error.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// command is one word that taskguard understands.
type command struct {
	name      string
	arguments string
	summary   string
	run       func(context.Context, *call) error
}

// commands are in the order of the usage text. worker and analyze are what
// demo and local start; they are listed for completeness.
func commands() []command {
	return []command{
		{"demo", "[FILE…]", "analyse files on worker processes, kill one of them, and show that each file finishes once", demo},
		{"local", "", "keep an emulated cloud and workers running until Ctrl-C, data in memory", local},
		{"submit", "FILE… | --input JSON", "create analyses and book their deliveries", submit},
		{"status", "[ID | --unfinished]", "show analyses, or one of them", showStatus},
		{"console", "", "a page of the analyses, live, for operators; read only unless --write", showConsole},
		{"unlock", "ID | --room ROOM", "take the lock from whoever holds it, and book a delivery", unlock},
		{"requeue", "ID", "open an analysis again, finished or not, and book a delivery", requeue},
		{"recover", "", "book a delivery for each unfinished analysis that nobody works on", recoverNow},
		{"doctor", "", "say what of a deployment contradicts what: the service, the queue, the indexes, the jobs", diagnose},
		{"hold", "--project NAME -- COMMAND [ARG…]", "run a command under the lock of a project, end it when the lock is lost, exit with its status", hold},
		{"worker", "", "a worker on a loopback port, as demo and local start it", workerProcess},
		{"analyze", "", "the demo's analyzer: a job on standard input, its result on standard output", analyze},
		{"version", "", "which build of this program it is; also -v and --version", showVersion},
	}
}

// call is one invocation of a command.
type call struct {
	command
	streams
	args   []string
	lookup func(string) (string, bool)
	flags  *flag.FlagSet
	json   bool
}

// usageError is a wrong invocation; its message is one line.
type usageError string

func (e usageError) Error() string { return string(e) }

// environmentError is a wrong environment; it holds one line a problem.
type environmentError struct{ error }

// exitError ends the process with a code of its own; its message goes out as it is.
type exitError struct {
	code int
	error
}

// run runs the command that args name and answers the exit code.
func run(ctx context.Context, args []string, s streams, lookup func(string) (string, bool)) int {
	out := &output{to: s.out}
	code := dispatch(ctx, args, streams{s.in, out, s.err}, lookup)
	if lost := out.lost(); lost != nil && code == exitDone {
		return report(ctx, s.err, "", fmt.Errorf("standard output: %w", lost))
	}
	return code
}

func dispatch(ctx context.Context, args []string, s streams, lookup func(string) (string, bool)) int {
	if len(args) == 1 && (args[0] == "-v" || args[0] == "--version") {
		args = []string{"version"}
	}
	help := []string{"help", "-h", "--help"}
	if len(args) == 0 || slices.Contains(help, args[0]) {
		if len(args) > 1 && !slices.Contains(help, args[1]) {
			return dispatch(ctx, []string{args[1], "--help"}, s, lookup)
		}
		usage(s.out)
		return exitDone
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return report(ctx, s.err, c.name, c.run(ctx, newCall(c, args[1:], s, lookup)))
		}
	}
	return report(ctx, s.err, "", usageError(fmt.Sprintf("no command %q", args[0])+suggestion(args[0])))
}

// suggestion names the first command that differs from word in at most two letters.
func suggestion(word string) string {
	for _, c := range commands() {
		a, b := c.name, word
		for a != "" && b != "" && a[0] == b[0] {
			a, b = a[1:], b[1:]
		}
		for a != "" && b != "" && a[len(a)-1] == b[len(b)-1] {
			a, b = a[:len(a)-1], b[:len(b)-1]
		}
		if len(a) <= 2 && len(b) <= 2 {
			return "; did you mean " + c.name + "?"
		}
	}
	return ""
}

// report tells what went wrong, and answers the exit code.
func report(ctx context.Context, w io.Writer, name string, err error) int {
	prefix := strings.TrimSpace("taskguard " + name)
	var wrongUsage usageError
	var wrongEnvironment environmentError
	var coded exitError
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return exitDone
	case errors.As(err, &wrongUsage):
		printTo(w, "%s: %s (see: taskguard help%s)\n", prefix, visible(err.Error()), strings.TrimPrefix(prefix, "taskguard"))
		return exitUsage
	case errors.As(err, &wrongEnvironment):
		for line := range strings.Lines(err.Error()) {
			printTo(w, "%s: %s\n", prefix, visible(strings.TrimSpace(line)))
		}
		return exitUsage
	case errors.As(err, &coded):
		if coded.error != nil { // else it is another program's exit code, which has had its say
			printTo(w, "%v\n", err)
		}
		return coded.code
	case ctx.Err() != nil:
		printTo(w, "%s: interrupted\n", prefix)
		return exitInterrupted
	}
	printTo(w, "%s: %s\n", prefix, visibleLines(err.Error()))
	return exitFailed
}

func usage(w io.Writer) {
	printTo(w, "taskguard COMMAND [--json] [FLAG…] [ARGUMENT…]\n\n")
	for _, c := range commands() {
		printTo(w, "  %-28s %s\n", strings.TrimSpace(c.name+" "+c.arguments), c.summary)
	}
	printTo(w, "\nExit 0: done, 1: refused or failed, 2: wrong usage or environment, 130: interrupted.\nFlags and environment of one command: taskguard help COMMAND\n")
}

func newCall(c command, args []string, s streams, lookup func(string) (string, bool)) *call {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // its errors are told once, by report
	return &call{command: c, streams: s, args: args, lookup: lookup, flags: flags}
}

// parse reads the flags, which may stand before, between and after the
// arguments, and answers the arguments: at least lo and, unless hi is negative,
// at most hi.
func (c *call) parse(lo, hi int) ([]string, error) {
	var arguments []string
	for rest := c.args; ; {
		if err := c.flags.Parse(rest); errors.Is(err, flag.ErrHelp) {
			c.help()
			return nil, err
		} else if err != nil {
			return nil, usageError(err.Error())
		}
		left := c.flags.Args()
		if ended := len(rest) - len(left); ended > 0 && rest[ended-1] == "--" {
			arguments = append(arguments, left...)
			break
		}
		if len(left) == 0 {
			break
		}
		arguments, rest = append(arguments, left[0]), left[1:]
	}
	switch {
	case len(arguments) < lo:
		return nil, usageError("missing argument: want " + c.arguments)
	case hi >= 0 && len(arguments) > hi:
		return nil, usageError(fmt.Sprintf("unexpected argument %q", arguments[hi]))
	}
	return arguments, nil
}

// takesJSON declares --json.
func (c *call) takesJSON(meaning string) { c.flags.BoolVar(&c.json, "json", false, meaning) }

func (c *call) help() {
	printTo(c.out, "taskguard %s\n\n  %s\n\n", strings.TrimSpace(c.name+" [FLAG…] "+c.arguments), c.summary)
	c.flags.SetOutput(c.out)
	c.flags.PrintDefaults()
	if about := environmentOf(c.name); about != "" {
		printTo(c.out, "\nEnvironment: %s\n", about)
	}
}

// log is for what an operator's change leaves behind.
func (c *call) log() *slog.Logger { return slog.New(slog.NewTextHandler(c.err, nil)) }

// value is a variable of the environment; an empty one counts as unset.
func (c *call) value(name string) string {
	v, _ := c.lookup(name)
	return v
}

// printTo writes to a standard stream, or to what is flushed to one. What does
// not arrive there can be told nowhere else.
func printTo(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
