// Package cli parses arguments and the environment, prints output and sets exit codes for
// the commands of taskguard.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"taskguard/cmd/internal/printable"
	"taskguard/internal/text"
)

// Exit codes.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitInterrupted = 130
)

// Streams are a command's standard input, output and error.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Command is one command of taskguard.
type Command struct {
	Name      string
	Arguments string
	Summary   string
	Variables string // the environment variables that the help lists
	Run       func(context.Context, *Call) error
}

// Lookup returns a variable of the environment, as os.LookupEnv does.
type Lookup = func(name string) (value string, ok bool)

// Call is one invocation of a command.
type Call struct {
	Command
	Streams
	Args   []string
	Lookup Lookup
	Flags  *flag.FlagSet
	JSON   bool

	kind    string // the value of --kind
	records bool   // see UseRecords
}

// UsageError reports wrong arguments in one line.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// EnvironmentError reports wrong variables, one line for each problem.
type EnvironmentError struct{ Err error }

func (e EnvironmentError) Error() string { return e.Err.Error() }

// ExitError ends the process with Code.
type ExitError struct {
	Code int
	Err  error // nil: nothing is printed
}

func (e ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Run runs the command that args name and returns the exit code. The code is ExitFailed
// if standard output could not be written.
func Run(ctx context.Context, commands []Command, args []string, s Streams, lookup Lookup) int {
	out := &output{Writer: s.Out}
	code := dispatch(ctx, commands, args, Streams{s.In, out, s.Err}, lookup)
	if err := out.failure(); err != nil && code == ExitDone {
		return Report(ctx, s.Err, "", fmt.Errorf("standard output: %w", err))
	}
	return code
}

func dispatch(ctx context.Context, commands []Command, args []string, s Streams, lookup Lookup) int {
	help := []string{"help", "-h", "--help"}
	switch {
	case len(args) == 1 && (args[0] == "-v" || args[0] == "--version"):
		args = []string{"version"}
	case len(args) > 1 && slices.Contains(help, args[0]) && !slices.Contains(help, args[1]):
		args = []string{args[1], "--help"}
	case len(args) == 0:
		usage(s.Err, commands)
		return ExitUsage
	case slices.Contains(help, args[0]):
		usage(s.Out, commands)
		return ExitDone
	}

	for _, c := range commands {
		if c.Name == args[0] {
			return Report(ctx, s.Err, c.Name, c.Run(ctx, NewCall(c, args[1:], s, lookup)))
		}
	}
	problem := fmt.Sprintf("no command %q", args[0])
	if i := slices.IndexFunc(commands, func(c Command) bool { return Similar(c.Name, args[0]) }); i >= 0 {
		problem += "; did you mean " + commands[i].Name + "?"
	}
	return Report(ctx, s.Err, "", UsageError(problem))
}

// Similar reports whether a and b differ in at most two consecutive letters. It compares
// what remains without their common beginning and end.
func Similar(a, b string) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for a != "" && b != "" && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(a) <= 2 && len(b) <= 2
}

// Report prints err for the command name and returns the exit code.
func Report(ctx context.Context, w io.Writer, name string, err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return ExitDone
	}
	prefix, help := strings.TrimSpace("taskguard "+name), strings.TrimSpace("taskguard help "+name)
	var coded ExitError

	switch {
	case errors.As(err, new(UsageError)):
		Print(w, "%s: %s (see: %s)\n", prefix, printable.Line(err.Error()), help)
		return ExitUsage
	case errors.As(err, new(EnvironmentError)):
		for line := range strings.Lines(err.Error()) {
			Print(w, "%s: %s\n", prefix, printable.Line(strings.TrimSpace(line)))
		}
		return ExitUsage
	case errors.As(err, &coded):
		if coded.Err != nil {
			Print(w, "%s: %v\n", prefix, coded.Err)
		}
		return coded.Code
	case ctx.Err() != nil:
		Print(w, "%s: interrupted\n", prefix)
		return ExitInterrupted
	}

	message := strings.TrimPrefix(text.Error(err), "project: ") // hold's package
	Print(w, "%s: %s\n", prefix, printable.Lines(message))
	return ExitFailed
}

func usage(w io.Writer, commands []Command) {
	Print(w, "taskguard COMMAND [--json] [FLAG…] [ARGUMENT…]\n\n")
	for _, c := range commands {
		Print(w, "  %-28s %s\n", strings.TrimSpace(c.Name+" "+c.Arguments), c.Summary)
	}
	Print(w, "\nExit codes: 0 done, 1 refused or failed, 2 wrong usage or environment, 75 run did not finish, "+
		"130 interrupted.\n"+
		"Help for one command: taskguard help COMMAND\n")
}

// NewCall returns a call of c with args.
func NewCall(c Command, args []string, s Streams, lookup Lookup) *Call {
	flags := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // Report prints its errors
	return &Call{Command: c, Streams: s, Args: args, Lookup: lookup, Flags: flags}
}

// Parse reads the flags, which may be before, between and after the arguments, and returns
// the arguments: at least lo and, unless hi is negative, at most hi.
func (c *Call) Parse(lo, hi int) ([]string, error) {
	var arguments []string
	for rest := c.Args; ; {
		if err := c.ParseFlags(rest); err != nil {
			return nil, err
		}

		remaining := c.Flags.Args()
		parsed := len(rest) - len(remaining)
		if len(remaining) == 0 || parsed > 0 && rest[parsed-1] == "--" {
			arguments = append(arguments, remaining...)
			break
		}
		arguments, rest = append(arguments, remaining[0]), remaining[1:]
	}

	switch {
	case len(arguments) < lo:
		return nil, c.MissingArgument()
	case hi >= 0 && len(arguments) > hi:
		return nil, UsageError(fmt.Sprintf("unexpected argument %q", arguments[hi]))
	}
	return arguments, nil
}

// ParseFlags reads the flags up to the first argument. For --help it prints the help and
// returns flag.ErrHelp.
func (c *Call) ParseFlags(args []string) error {
	err := c.Flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.Help()
		return err
	case err != nil:
		return UsageError(err.Error())
	}
	return nil
}

// MissingArgument returns the error of a call without a required argument.
func (c *Call) MissingArgument() error { return UsageError("missing argument: want " + c.Arguments) }

// Given reports whether the flag name is set on the command line.
func (c *Call) Given(name string) (given bool) {
	c.Flags.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// TakesJSON declares --json.
func (c *Call) TakesJSON(meaning string) { c.Flags.BoolVar(&c.JSON, "json", false, meaning) }

// PrintJSON prints v as one line of JSON on standard output.
func (c *Call) PrintJSON(v any) error { return json.NewEncoder(c.Out).Encode(v) }

// Help prints the flags and variables of the command.
func (c *Call) Help() {
	Print(c.Out, "taskguard %s\n\n  %s\n\n", strings.TrimSpace(c.Name+" [FLAG…] "+c.Arguments), c.Summary)
	c.Flags.SetOutput(c.Out)
	c.Flags.PrintDefaults()
	if c.Variables != "" {
		Print(c.Out, "\nEnvironment: %s\n", c.Variables)
	}
}

// Log returns a log of an operator's changes, on standard error.
func (c *Call) Log() *slog.Logger { return slog.New(slog.NewTextHandler(c.Err, nil)) }

// Notice prints a line for people on standard error.
func (c *Call) Notice(format string, args ...any) {
	Print(c.Err, "taskguard "+c.Name+": "+format+"\n", args...)
}

// Value returns a variable of the environment, or "" if it is not set.
func (c *Call) Value(name string) string {
	v, _ := c.Lookup(name)
	return v
}
