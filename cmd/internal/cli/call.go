package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Call is one invocation of a command.
type Call struct {
	Streams
	Name   string // the command's
	Lookup Lookup
	Flags  *pflag.FlagSet // parsed
	JSON   bool           // --json is given

	use     string // the command line of the help
	kind    string // the value of --kind
	chosen  bool   // --kind is given
	records bool   // see UseRecords
}

// NewCall returns the call of a command whose flags are parsed.
func NewCall(cmd *cobra.Command, lookup Lookup) *Call {
	c := &Call{
		Streams: Streams{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()},
		Name:    cmd.Name(), Lookup: lookup, Flags: cmd.Flags(), use: cmd.Use,
	}
	c.JSON, _ = c.Flags.GetBool("json") // false for a command without this flag
	c.kind, _ = c.Flags.GetString("kind")
	c.chosen = c.Flags.Changed("kind")
	return c
}

// Bind returns the RunE of a command that is run by run.
func Bind(
	lookup Lookup, run func(ctx context.Context, c *Call, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), NewCall(cmd, lookup), args) }
}

// Args checks that a command has at least lo arguments and, unless hi is negative, at most hi.
func Args(lo, hi int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < lo:
			return NewCall(cmd, nil).MissingArgument()
		case hi >= 0 && len(args) > hi:
			return UsageError(fmt.Sprintf("unexpected argument %q", args[hi]))
		}
		return nil
	}
}

// MissingArgument returns the error of a call without a required argument.
func (c *Call) MissingArgument() error {
	_, arguments, _ := strings.Cut(c.use, " ")
	return UsageError("missing argument: want " + arguments)
}

// TakesJSON declares --json.
func TakesJSON(cmd *cobra.Command, meaning string) { cmd.Flags().Bool("json", false, meaning) }

// PrintJSON prints v as one line of JSON on standard output.
func (c *Call) PrintJSON(v any) error { return json.NewEncoder(c.Out).Encode(v) }

// Log returns a log of an operator's changes, on standard error. On a terminal its lines have only what the operator
// does not know.
func (c *Call) Log() *slog.Logger {
	if columns(c.Err, c.Lookup) == 0 {
		return slog.New(slog.NewTextHandler(c.Err, nil))
	}
	known := []string{slog.TimeKey, slog.LevelKey, "command", "project", "by", "lock_owner", "lock_token"}
	return slog.New(slog.NewTextHandler(c.Err, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if slices.Contains(known, a.Key) {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// Notice prints a line for people on standard error.
func (c *Call) Notice(format string, args ...any) {
	c.Line("taskguard "+c.Name+": "+format, args...)
}

// Line prints a line for people on standard error, wrapped for a terminal.
func (c *Call) Line(format string, args ...any) {
	Print(c.Err, "%s\n", fold(fmt.Sprintf(format, args...), columns(c.Err, c.Lookup)))
}

// Value returns a variable of the environment, or "" if it is not set.
func (c *Call) Value(name string) string {
	v, _ := c.Lookup(name)
	return v
}
