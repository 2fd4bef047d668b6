package cli

import (
	"io"
	"os"
	"regexp"
	"strings"

	"golang.org/x/term"
)

// Columns returns the width of standard output if it is a terminal: COLUMNS, else what the terminal says, else 80.
// Otherwise it returns 0: a program that reads the output gets whole lines.
func (c *Call) Columns() int {
	return columns(c.Out, c.Lookup)
}

// columns returns the width of w if it is a terminal, else 0.
func columns(w io.Writer, lookup Lookup) int {
	if stdout, ok := w.(*output); ok {
		w = stdout.Writer
	}
	if file, ok := w.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
		return 0
	}
	return width(w, lookup)
}

// fold breaks the long lines of a message at a terminal's columns; 0: it does not. It breaks no line after the
// beginning of a command: who pastes half of a command would change more than all of it does.
func fold(message string, columns int) string {
	if columns <= 0 {
		return message
	}
	const indent = 2
	quotedCommand := regexp.MustCompile(` (?:\(see: )?` + regexp.QuoteMeta(Program()) + ` [a-z]`)
	lines := strings.Split(message, "\n")
	for i, line := range lines {
		if len([]rune(line)) <= columns || strings.HasPrefix(line, " ") && i > 0 { // or code in a traceback
			continue
		}
		command := ""
		if at := quotedCommand.FindStringIndex(line); at != nil {
			line, command = line[:at[0]], "\n"+strings.Repeat(" ", indent)+line[at[0]+1:]
		}
		lines[i] = wrap(line, indent, columns-indent) + command
	}
	return strings.Join(lines, "\n")
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
