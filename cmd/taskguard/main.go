// Command taskguard is the operator's tool: it shows the whole thing on this
// machine (demo, local), hands in analyses (submit), and looks after them
// (status, unlock, requeue, recover). `taskguard help` lists its commands.
//
// Flags may stand before and after a command's arguments; what follows -- is an
// argument. It exits 0 when done, 1 when refused or failed, 2 on wrong usage or
// environment, 130 when interrupted.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}, os.LookupEnv))
}
