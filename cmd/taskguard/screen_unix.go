//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalSize is the zero screen where f is no terminal.
func terminalSize(f *os.File) screen {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return screen{}
	}
	return screen{int(size.Col), int(size.Row)}
}
