package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newCompletion returns the command completion. Cobra's own has a command for each shell, and PowerShell.
func newCompletion() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Print a script that completes commands in your shell",
		Args: Args(1, 1), ValidArgs: shells,
		Long: "Load it in each new shell:\n\n" +
			"bash (needs bash-completion): add `source <(taskguard completion bash)` to ~/.bashrc.\n\n" +
			"zsh: add `source <(taskguard completion zsh)` to ~/.zshrc, below compinit.\n\n" +
			"fish: `mkdir -p ~/.config/fish/completions` once, and " +
			"`taskguard completion fish >~/.config/fish/completions/taskguard.fish`.",
		Example: "taskguard completion bash",
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return unknown("shell", args[0], shells)
		},
	}
}

// unquoteFlags removes the backquotes around the names of values. The help replaces them, and cobra's completion
// would print them.
func unquoteFlags(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "`", "") })
	}
}

// Complete completes the values of a flag.
func Complete(cmd *cobra.Command, flag string, lookup Lookup, values func(*Call) []string) {
	complete := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return values(NewCall(cmd, lookup)), cobra.ShellCompDirectiveNoFileComp
	}
	_ = cmd.RegisterFlagCompletionFunc(flag, complete) // fails for a flag that is not declared
}

// Files completes arguments that are files.
func Files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}
