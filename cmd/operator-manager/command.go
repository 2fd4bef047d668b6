package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"taskguard/lease/operatorpool"
	"taskguard/worker/printable"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// surroundings are what a command sees of the world.
type surroundings struct {
	out, err io.Writer
	lookup   func(string) (string, bool)
	hostname func() (string, error)
	parent   func() int
	alive    func(pid int) bool
}

// usageError is a wrong invocation or a wrong file of operators.
type usageError string

func (e usageError) Error() string { return string(e) }

// commands are what there is to do, in the order of the usage text.
var commands = []struct {
	name, arguments, summary string
	do                       func(context.Context, *call, string) (answer, error)
}{
	{"available", "", "list the operators that no other session has", available},
	{"assign", "[ID]", "take an operator: ID, else keep the one there is, else any that is available", assign},
	{"release", "", "give the operator back", release},
	{"status", "", "show this session's operator, and which of them are in use", status},
	{"refresh", "", "keep the operator for another 4 hours, or what operatorTimeout says", refresh},
	{"clear", "", "free all operators, whichever session has them", clearAll},
}

// call is one invocation.
type call struct {
	surroundings
	operators, state, session string
	json                      bool
	pool                      *operatorpool.Pool
}

// run does what args say and answers the exit code. Nothing is printed to standard
// output where it is not 0.
func run(ctx context.Context, args []string, s surroundings) int {
	var out bytes.Buffer
	c := &call{surroundings: s}
	err := c.dispatch(ctx, args, &out)
	if err == nil {
		_, err = s.out.Write(out.Bytes())
	}
	var wrong usageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &wrong):
		tell(s.err, err)
		return exitUsage
	}
	tell(s.err, err)
	return exitFailed
}

// tell says what went wrong. Where that does not arrive, it can be told nowhere else.
func tell(w io.Writer, err error) {
	lines := strings.Split(message(err), "\n")
	for i, line := range lines {
		lines[i] = printable.Line(line)
	}
	_, _ = fmt.Fprintf(w, "エラー: %s\n", strings.Join(lines, "\n"))
}

func (c *call) dispatch(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("operator-manager", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // its errors are told once, by run
	flags.StringVar(&c.operators, "operators", "", "`FILE` of the operators; else OPERATORS_FILE, else "+operatorsFile+" in the current directory")
	flags.StringVar(&c.state, "state", "", "`FILE` that the sessions share; else /tmp/coeiroink-operators-HOSTNAME.json")
	flags.StringVar(&c.session, "session", "", "`ID` of the session; else ITERM_SESSION_ID, else TERM_SESSION_ID, else the process id of the shell")
	flags.BoolVar(&c.json, "json", false, "print one JSON document")
	words, err := parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp), err == nil && len(words) == 0, err == nil && words[0] == "help":
		usage(out, flags)
		return nil
	case err != nil:
		return usageError(err.Error())
	}
	for _, command := range commands {
		if command.name != words[0] {
			continue
		}
		words = words[1:]
		if len(words) > 1 || len(words) == 1 && (command.arguments == "" || words[0] == "") {
			return usageError(fmt.Sprintf("unexpected argument %q (see: operator-manager help)", words[len(words)-1]))
		}
		if err := c.open(flags); err != nil {
			return err
		}
		a, err := command.do(ctx, c, strings.Join(words, ""))
		if err != nil {
			return err
		}
		return a.print(out, c.json)
	}
	return usageError(fmt.Sprintf("no command %q (see: operator-manager help)", words[0]))
}

// parse reads flags, which may stand before, between and after the words, and
// answers the words.
func parse(flags *flag.FlagSet, args []string) (words []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		left := flags.Args()
		if ended := len(args) - len(left); ended > 0 && args[ended-1] == "--" || len(left) == 0 {
			return append(words, left...), nil
		}
		words, args = append(words, left[0]), left[1:]
	}
}

// open makes the pool that the flags and the environment name.
func (c *call) open(flags *flag.FlagSet) (err error) {
	flags.Visit(func(f *flag.Flag) {
		if f.Value.String() == "" {
			err = usageError("--" + f.Name + " is empty")
		}
	})
	if err != nil {
		return err
	}
	if c.operators == "" {
		c.operators = operatorsFile
		if path, _ := c.lookup("OPERATORS_FILE"); path != "" {
			c.operators = path
		}
	}
	operators, timeout, err := readOperators(c.operators)
	if err != nil {
		return err
	}
	if c.state == "" {
		host, err := c.hostname()
		if err != nil {
			return err
		}
		c.state = operatorpool.Path(host)
	}
	if c.session == "" {
		c.session = operatorpool.SessionID(c.lookup, c.parent)
	}
	file, err := operatorpool.Open[string](c.state)
	if err != nil {
		return err
	}
	storage, err := operatorpool.NewStorage(file, c.state, c.session, operatorpool.Options{
		Timeout: timeout, Alive: c.alive, Log: slog.New(slog.NewTextHandler(c.err, nil)),
	})
	if err != nil {
		return err
	}
	c.pool, err = operatorpool.New(storage, operators, nil)
	return err
}

func usage(w io.Writer, flags *flag.FlagSet) {
	text := "operator-manager COMMAND [FLAG…]\n\n"
	for _, c := range commands {
		text += fmt.Sprintf("  %-14s %s\n", strings.TrimSpace(c.name+" "+c.arguments), c.summary)
	}
	text += "\nExit 0: done, 1: refused or failed, 2: wrong usage or file of operators.\n\n"
	_, _ = io.WriteString(w, text) // a buffer
	flags.SetOutput(w)
	flags.PrintDefaults()
}
