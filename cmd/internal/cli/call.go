package cli

import (
	"encoding/json"
	"log/slog"

	"github.com/spf13/cobra"
)

// Call is one invocation of a command.
type Call struct {
	Streams
	Name   string // the command's
	Lookup Lookup
	JSON   bool // --json is given

	kind    string // the value of --kind
	chosen  bool   // --kind is given
	records bool   // see UseRecords
}

// NewCall returns the call of a command whose flags are parsed.
func NewCall(cmd *cobra.Command, lookup Lookup) *Call {
	c := &Call{
		Streams: Streams{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()},
		Name:    cmd.Name(), Lookup: lookup,
	}
	c.JSON, _ = cmd.Flags().GetBool("json") // false for a command without this flag
	c.kind, _ = cmd.Flags().GetString("kind")
	c.chosen = cmd.Flags().Changed("kind")
	return c
}

// TakesJSON declares --json.
func TakesJSON(cmd *cobra.Command, meaning string) { cmd.Flags().Bool("json", false, meaning) }

// PrintJSON prints v as one line of JSON on standard output.
func (c *Call) PrintJSON(v any) error { return json.NewEncoder(c.Out).Encode(v) }

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
