// Command taskguard is the operator's tool: it shows the product on this machine (demo,
// local), serves an emulator for tests, submits analyses (submit), runs one (run), and operates
// on them (status, unlock, cancel, delete, requeue, recover, console). `taskguard help` lists its commands.
//
// Flags may stand before and after a command's arguments; what follows -- is an
// argument. It exits 0 when done, 1 when refused or failed, 2 on wrong usage or
// environment, 75 when run has not finished its analysis, 130 when interrupted.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/hold"
	"taskguard/cmd/internal/local"
	"taskguard/cmd/internal/operate"
	"taskguard/internal/children"
)

// commands returns all commands but those of package cli. demo and local start worker.
func commands() []cli.Command {
	return []cli.Command{
		local.Demo, local.Local, local.Emulator, local.Worker,
		operate.Submit, operate.Run, operate.Status, operate.Console,
		operate.Unlock, operate.Cancel, operate.Requeue, operate.Resolve, operate.Delete, operate.Recover,
		operate.Doctor, operate.Env, operate.Restore,
		hold.Hold,
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	go children.Reap(context.Background()) // ends with the process
	streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	os.Exit(cli.Run(ctx, commands(), os.Args[1:], streams, os.LookupEnv))
}
