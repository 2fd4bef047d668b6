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

// Variables that commands read.
const (
	database = "GOOGLE_CLOUD_PROJECT, FIRESTORE_DATABASE, FIRESTORE_EMULATOR_HOST, ANALYSES_COLLECTION, CONCURRENCY_KEY, KINDS, " +
		"KEEP_FINISHED, LOCK_TTL (5m), LOCK_HEARTBEAT, MAX_ATTEMPTS"
	queue = database + "; TASK_QUEUE, TASK_TARGET_URL, TASK_CALLER, TASK_AUDIENCE, CLOUD_TASKS_EMULATOR_HOST, " +
		"and the worker's RUN_TIMEOUT (25m)"
	noQueue   = queue + ". Without TASK_QUEUE the document is changed and no delivery is booked."
	lockRooms = "DOCLOCK_DATABASE (FIRESTORE_DATABASE), DOCUMENT_LOCKS_COLLECTION (documentLocks)"
)

// commands are in the order of the usage text. demo and local start worker.
func commands() []cli.Command {
	return []cli.Command{
		{Name: "demo", Arguments: "[FILE…]", Run: local.Demo,
			Summary: "analyse files on worker processes, kill one of them, " +
				"and show that its run is continued and each file is finished once"},
		{Name: "local", Run: local.Local,
			Summary: "keep an emulated cloud and workers running until Ctrl-C, data in memory",
			Variables: "ANALYZER (builtin:document), ANALYZER_ENV and ANALYZER_OUTPUT; " +
				"ANALYSES_COLLECTION; the worker's LOCK_…, MAX_…, " +
				"RUN_TIMEOUT, CHECKPOINT_INTERVAL, STALL_TIMEOUT, RETRY_…, CONCURRENCY_… and KEEP_FINISHED; " +
				"the document lock's DOCUMENT_LOCK_TTL, DOCUMENT_LOCKS_COLLECTION, LOCKS_PER_SESSION, " +
				"SOCKETS_PER_SESSION, SESSION_SECRET, PUSHER_APP_KEY, PUSHER_APP_SECRET, PUSHER_CHANNEL, " +
				"PUSHER_EVENT_NAMESPACE, ALLOWED_ORIGINS and AUTHORIZE_URL"},
		{Name: "emulator", Run: local.Emulator,
			Summary: "keep an embedded Firestore and Cloud Tasks running until Ctrl-C, for programs and tests in any " +
				"language; data in memory",
			Variables: "TASK_QUEUE: the queue without --queue"},

		{Name: "submit", Arguments: "FILE… | --input JSON", Run: operate.Submit,
			Summary: "create analyses and book their deliveries", Variables: queue},
		{Name: "run", Arguments: "ID", Run: operate.Run,
			Summary: "run an analysis in this process, under its lock, as the worker does for a delivery: " +
				"for a Cloud Run job, a machine with a GPU, or to look for a fault",
			Variables: "ANALYZER, which must be set; the worker's others, see docs/reference.md: LOCK_TTL, " +
				"TASK_QUEUE and so on; KINDS. " +
				"TASK_AUTH, MAX_RUNS and PORT have no meaning here; RUN_TIMEOUT (25m) can be as long as " +
				"MAX_RUN_TIME (24h); LOG_FORMAT (text)" +
				"\n\nExit 0: it is READY, or was finished before. 1: it is FAILED, or does not exist. 2: wrong usage or environment. " +
				"75: not finished, " +
				"as another run has the lock, the run failed for now or lost its lock, or it was stopped. " +
				"SIGTERM and Ctrl-C stop the run, release the lock and book the next delivery, within 9 seconds; " +
				"a second one ends the process at once, and the lock expires." +
				"\n\nExample, three hours at most, with the environment of the worker:" +
				"\n\n  RUN_TIMEOUT=3h ANALYZER=exec:/app/transcribe taskguard run recording-17"},
		{Name: "status", Arguments: "[ID | --unfinished | --uncertain | --summary | FILTER]", Run: operate.Status,
			Summary:   "show analyses, one of them, or the backlog",
			Variables: database},
		{Name: "console", Run: operate.Console,
			Summary: "show the analyses live on a page for operators; read only unless --write",
			Variables: queue + "; PORT with --listen; LOG_FORMAT (text); " +
				"TASK_JWKS_URL, for tests: the address of the proxy's public keys. " +
				"On Cloud Run its probe is of TCP, as every request needs the proxy."},
		{Name: "unlock", Arguments: "ID | --room ROOM", Run: operate.Unlock,
			Summary:   "release the lock by force, also during a run; book a delivery unless the analysis is finished",
			Variables: noQueue + " With --room: " + lockRooms + ", and no queue."},
		{Name: "cancel", Arguments: "ID… | FILTER", Run: operate.Cancel,
			Summary: "make analyses FAILED with the code cancelled; with an ID or --running also during a run, " +
				"which then ends and writes nothing", Variables: database},
		{Name: "requeue", Arguments: "ID… | FILTER", Run: operate.Requeue,
			Summary: "reset analyses to QUEUED with 0 attempts, finished or not, and book deliveries; " +
				"refused while one is locked. A filter takes READY ones only with --status READY", Variables: noQueue},
		{Name: "resolve", Arguments: "ID NAME (--done JSON | --not-done)", Run: operate.Resolve,
			Summary:   "answer an act that may have been done (status --uncertain), and book a delivery",
			Variables: noQueue},
		{Name: "delete", Arguments: "ID…", Run: operate.Delete, Variables: database,
			Summary: "delete the documents of analyses, with their inputs and results; refused while one is locked"},
		{Name: "recover", Run: operate.Recover, Variables: queue,
			Summary: "book a delivery for each orphaned analysis: unfinished, and not locked"},
		{Name: "restore", Arguments: "--min-token TOKEN", Run: operate.Restore, Variables: database,
			Summary: "after a restore of the database, make the fencing token of each document at least TOKEN"},
		{Name: "doctor", Run: operate.Doctor,
			Summary:   "check whether the settings of a deployment fit: the service, the queue, the indexes, the jobs",
			Variables: database + ", TASK_QUEUE; for short names also CLOUDSDK_RUN_REGION, or the region of TASK_QUEUE"},
		{Name: "env", Arguments: "--service NAME", Run: operate.Env,
			Summary:   "print the exports that the other commands need, read from a deployed service",
			Variables: "for short names GOOGLE_CLOUD_PROJECT, and CLOUDSDK_RUN_REGION or the region of TASK_QUEUE"},

		{Name: "hold", Arguments: "--project NAME -- COMMAND [ARG…]", Run: hold.Hold,
			Summary: "run a command under the lock of a project, end it when the lock is lost, exit with its status",
			Variables: "GOOGLE_CLOUD_PROJECT, FIRESTORE_EMULATOR_HOST, " + lockRooms + "; without a project, project/.lock alone" +
				"\n\nWhen the lock is lost, the command's process group is ended. " +
				"A process that leaves the group, by setsid or a shell's job control, is not. " +
				"If hold itself is killed by SIGKILL, Linux kills the command, but not the command's children."},
		{Name: "worker", Run: local.Worker,
			Summary:   "a worker on a loopback port, as demo and local start it",
			Variables: "the worker's, see docs/reference.md"},
		{Name: "version", Run: operate.Version, Summary: "which build of this program it is; also -v and --version"},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	go children.Reap(context.Background()) // ends with the process
	streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	os.Exit(cli.Run(ctx, commands(), os.Args[1:], streams, os.LookupEnv))
}
