package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"taskguard/internal/build"
)

// The groups of the commands in the help of taskguard.
const (
	TryIt   = "try"
	RunThem = "run"
	Look    = "look"
	Change  = "change"
	Deploy  = "deploy"
	Locks   = "locks"
)

var groups = []*cobra.Group{
	{ID: TryIt, Title: "Try it"},
	{ID: RunThem, Title: "Submit and run"},
	{ID: Look, Title: "Look"},
	{ID: Change, Title: "Change"},
	{ID: Deploy, Title: "Deploy"},
	{ID: Locks, Title: "Locks"},
}

const exitCodes = "Exit codes: 0 done, 1 refused or failed, 2 wrong usage or environment, " +
	"75 run did not finish, 130 interrupted."

// variables is the annotation of a command with the environment variables that it reads.
const variables = "variables"

// Reads returns the annotation for the help that names the environment variables of a command.
func Reads(names string) map[string]string { return map[string]string{variables: names} }

// printHelp prints the help of cmd.
func printHelp(w io.Writer, cmd *cobra.Command, lookup Lookup) {
	columns := width(w, lookup)
	if !cmd.HasParent() {
		printCommands(w, cmd, columns)
		return
	}

	Print(w, "%s\n\n", wrap(cmd.Short+".", 0, columns))
	for paragraph := range strings.SplitSeq(cmd.Long, "\n\n") {
		if paragraph != "" {
			Print(w, "%s\n\n", wrap(paragraph, 0, columns))
		}
	}
	Print(w, "Usage: %s\n", wrap(cmd.UseLine(), 2, columns-len("Usage: ")))
	if cmd.Example != "" {
		Print(w, "\nExamples:\n  %s\n", strings.ReplaceAll(cmd.Example, "\n", "\n  "))
	}
	Print(w, "\nFlags:\n%s", cmd.LocalFlags().FlagUsagesWrapped(columns))
	if names := cmd.Annotations[variables]; names != "" {
		Print(w, "\nEnvironment:\n  %s\n", wrap(names, 2, columns-2))
	}
}

// printCommands prints the help of taskguard: its commands, in groups.
func printCommands(w io.Writer, root *cobra.Command, columns int) {
	Print(w, "%s\n\nUsage: taskguard COMMAND [FLAG…] [ARGUMENT…]\n", wrap(root.Short+".", 0, columns))
	const indent = 14
	for _, group := range append(root.Groups(), &cobra.Group{Title: "More"}) {
		Print(w, "\n%s\n", group.Title)
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID && !cmd.Hidden {
				Print(w, "  %-11s %s\n", cmd.Name(), wrap(cmd.Short, indent, columns-indent))
			}
		}
	}
	Print(w, "\n%s\n%s\n", wrap(exitCodes, 0, columns),
		wrap("Help for one command: "+Program()+" help COMMAND", 0, columns))
}

// wrap breaks text into lines of at most columns, and indents all but the first.
func wrap(text string, indent, columns int) string {
	var wrapped strings.Builder
	length := 0
	for i, word := range strings.Fields(text) {
		n := len([]rune(word))
		switch {
		case i > 0 && length+1+n > columns:
			wrapped.WriteString("\n" + strings.Repeat(" ", indent))
			length = 0
		case i > 0:
			wrapped.WriteByte(' ')
			length++
		}
		wrapped.WriteString(word)
		length += n
	}
	return wrapped.String()
}

// width returns the number of columns of w: COLUMNS, else the width of the terminal, else 80.
func width(w io.Writer, lookup Lookup) int {
	const usual, narrowest = 80, 40
	value, _ := lookup("COLUMNS")
	columns, err := strconv.Atoi(value)
	if err != nil {
		columns = usual
		if stdout, ok := w.(*output); ok {
			w = stdout.Writer
		}
		if file, ok := w.(*os.File); ok {
			if n, _, err := term.GetSize(int(file.Fd())); err == nil {
				columns = n
			}
		}
	}
	return max(columns, narrowest)
}

// newHelp returns the command help.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show how a command is used", Args: Args(0, 1), Example: "taskguard help requeue",
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			for _, c := range cmd.Root().Commands() {
				if c.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, _, err := cmd.Root().Find(args)
			switch {
			case err == nil && of == cmd.Root() && len(args) > 0:
				return noCommand(of, args[0])
			case err == nil && of == cmd: // help help
				of = cmd.Root()
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
	}
}

func version() string {
	return fmt.Sprintf("%s, commit %s, %s", build.Release, build.Commit(), runtime.Version())
}

// newVersion returns the command version.
func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Show the version; also -v and --version",
		Args: Args(0, 0), Example: "taskguard version --json",
		RunE: Bind(nil, func(_ context.Context, c *Call, _ []string) error {
			if c.JSON {
				return c.PrintJSON(map[string]string{
					"version": build.Release, "commit": build.Commit(), "go": runtime.Version(),
				})
			}
			Print(c.Out, "taskguard %s\n", version())
			return nil
		}),
	}
	TakesJSON(cmd, "print the build as one JSON document")
	return cmd
}
