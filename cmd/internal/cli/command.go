// Package cli is what the commands of taskguard share: their tree, their help, completion and
// exit codes, the environment, and output.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

// Command declares a command with its flags, and reads its environment by lookup.
type Command func(lookup Lookup) *cobra.Command

// Lookup returns a variable of the environment, as os.LookupEnv does.
type Lookup = func(name string) (value string, ok bool)

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
	root := Root(commands, lookup)
	root.SetIn(s.In)
	root.SetOut(out)
	root.SetErr(s.Err)
	root.SetArgs(append([]string{}, args...)) // for nil, cobra would take the arguments of the process
	if len(args) > 0 && args[0] == cobra.ShellCompRequestCmd {
		unquoteFlags(root)
	}

	cmd, err := root.ExecuteContextC(ctx)
	if err == nil && misspelt(cmd) {
		err = noCommand(root, cmd.Flags().Arg(0))
	}
	name := ""
	if cmd != root && cmd.Name() != "help" {
		name = cmd.Name()
	}
	code := Report(ctx, s.Err, name, err)
	if err := out.failure(); err != nil && code == ExitDone {
		return Report(ctx, s.Err, "", fmt.Errorf("standard output: %w", err))
	}
	return code
}

// misspelt reports whether cmd, which has run, was asked for the help of a command that does not exist.
func misspelt(cmd *cobra.Command) bool {
	return !cmd.HasParent() && cmd.Flags().Changed("help") && cmd.Flags().NArg() > 0
}

// Root returns the tree of commands.
func Root(commands []Command, lookup Lookup) *cobra.Command {
	root := &cobra.Command{
		Use:   "taskguard",
		Short: "Run analyses one worker at a time, look at them, and change them",

		Version: version(), SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs, // without it, cobra words the error of an unknown command
		RunE: func(root *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noCommand(root, args[0])
			}
			printHelp(root.ErrOrStderr(), root, lookup)
			return ExitError{Code: ExitUsage}
		},
	}
	root.SetVersionTemplate("taskguard {{.Version}}\n")
	root.SetFlagErrorFunc(FlagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if !misspelt(cmd) { // Run reports it
			printHelp(cmd.OutOrStdout(), cmd, lookup)
		}
	})
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)

	root.AddGroup(groups...)
	for _, command := range commands {
		root.AddCommand(command(lookup))
	}
	root.AddCommand(newCompletion(), newVersion())
	root.SetHelpCommand(newHelp())
	return root
}

func noCommand(root *cobra.Command, name string) UsageError {
	var known []string // with help, which cobra leaves out of its own suggestions
	for _, cmd := range root.Commands() {
		known = append(known, cmd.Name())
	}
	return UsageError(fmt.Sprintf("no command %q", name) + didYouMean("", text.Nearest(name, known)))
}

func didYouMean(dashes string, suggestions []string) string {
	if len(suggestions) == 0 {
		return ""
	}
	return "; did you mean " + dashes + suggestions[0] + "?"
}

// FlagError returns the UsageError for an error of cmd's flags.
func FlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case cmd.Flags().Changed("help"): // before the wrong flag; -help is -h with a wrong rest
		return pflag.ErrHelp
	case !cmd.HasParent() && cmd.Flags().NArg() > 0: // the flags of a misspelt command
		return noCommand(cmd, cmd.Flags().Arg(0))
	case errors.As(err, &unknown):
		return unknownFlag(cmd, unknown)
	case errors.As(err, &invalid):
		return invalidValue(invalid)
	}
	return UsageError(err.Error())
}

// unknownFlag also answers a long flag with one dash, which is how taskguard once wrote its flags.
func unknownFlag(cmd *cobra.Command, err *pflag.NotExistError) UsageError {
	dashes, name := "--", err.GetSpecifiedName()
	if letters := err.GetSpecifiedShortnames(); letters != "" {
		dashes, name = "-", letters
	}
	name, _, _ = strings.Cut(name, "=")
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })

	problem := "unknown flag " + dashes + name + didYouMean("--", text.Nearest(name, known))
	if !cmd.HasParent() {
		problem += "; flags follow the command"
	}
	return UsageError(problem)
}

// invalidValue names what a flag wants. The errors of strconv and time name their functions instead.
func invalidValue(err *pflag.InvalidValueError) UsageError {
	want := err.Unwrap().Error()
	switch flag := err.GetFlag(); flag.Value.Type() {
	case "bool":
		want = "want true or false"
	case "duration":
		want = "want a duration such as 90s or 5m"
	case "float64":
		want = "want a number"
	case "int", "int64":
		want = "want a whole number"
	}
	return UsageError(fmt.Sprintf("--%s %q: %s", err.GetFlag().Name, err.GetValue(), want))
}

// Report prints err for the command name and returns the exit code.
func Report(ctx context.Context, w io.Writer, name string, err error) int {
	if err == nil {
		return ExitDone
	}
	prefix, help := strings.TrimSpace("taskguard "+name), strings.TrimSpace(Program()+" help "+name)
	var coded ExitError
	say := func(format string, args ...any) {
		Print(w, "%s\n", fold(fmt.Sprintf(format, args...), columns(w, os.LookupEnv)))
	}

	switch {
	case errors.As(err, new(UsageError)):
		say("%s: %s (see: %s)", prefix, printable.Line(err.Error()), help)
		return ExitUsage
	case errors.As(err, new(EnvironmentError)):
		for line := range strings.Lines(err.Error()) {
			say("%s: %s", prefix, printable.Line(strings.TrimSpace(line)))
		}
		return ExitUsage
	case errors.As(err, &coded):
		if coded.Err != nil {
			say("%s: %v", prefix, coded.Err)
		}
		return coded.Code
	case ctx.Err() != nil:
		say("%s: interrupted", prefix)
		return ExitInterrupted
	}

	message := strings.TrimPrefix(text.Error(err), "project: ") // hold's package
	say("%s: %s", prefix, printable.Lines(message))
	return ExitFailed
}
