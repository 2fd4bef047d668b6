//go:build !unix

package main

import "os"

// terminalSize knows no size here; COLUMNS may.
func terminalSize(*os.File) screen { return screen{} }
