package operatorpool

import (
	"math"
	"strconv"
)

// SessionID is what all processes of a terminal session call it: its
// ITERM_SESSION_ID, else its TERM_SESSION_ID, else the process id of their parent,
// the shell, which is asked for only then (O4). An empty variable counts as unset.
func SessionID(lookup func(name string) (string, bool), parent func() int) string {
	for _, name := range []string{"ITERM_SESSION_ID", "TERM_SESSION_ID"} {
		if id, _ := lookup(name); id != "" {
			return id
		}
	}
	return strconv.Itoa(parent())
}

// processID is the process that session is named after; false if it is not named
// after one.
func processID(session string) (int, bool) {
	pid, err := strconv.Atoi(session)
	return pid, err == nil && pid > 0 && pid <= math.MaxInt32 && strconv.Itoa(pid) == session
}
