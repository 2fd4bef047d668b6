package cli

import (
	"os"

	"golang.org/x/term"
)

// Columns returns the width of standard output if it is a terminal: COLUMNS, else what the terminal says, else 80.
// Otherwise it returns 0: a program that reads the output gets whole lines.
func (c *Call) Columns() int {
	stdout, _ := c.Out.(*output)
	if stdout == nil {
		return 0
	}
	if file, ok := stdout.Writer.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
		return 0
	}
	return width(c.Out, c.Lookup)
}

// Wrap breaks text into lines of at most columns runes, and indents all but the first; 0 columns: it does not.
func Wrap(text string, indent, columns int) string {
	if columns <= 0 {
		return text
	}
	return wrap(text, indent, columns)
}

// Head returns the first n runes of text, with an ellipsis if that is not all.
func Head(text string, n int) string {
	if runes := []rune(text); len(runes) > n && n > 0 {
		return string(runes[:n-1]) + "…"
	}
	return text
}
