// Command operator-manager gives a terminal session an operator of its own, out of a
// few that the sessions of this machine share. `operator-manager help` lists its
// commands.
//
// A session is known by its ITERM_SESSION_ID, else its TERM_SESSION_ID, else by the
// process that started this one: the shell, whose end frees the operator. Where that
// process is the go tool (go run), which ends with this one, it is the process that
// started the go tool. What starts each command from a new shell, such as cron or an
// editor, names its session by --session.
//
// It exits 0 when done, 1 when refused or failed, 2 on wrong usage or operators.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], surroundings{
		out: os.Stdout, err: os.Stderr, lookup: os.LookupEnv, hostname: os.Hostname, parent: parent, alive: alive,
	}))
}
