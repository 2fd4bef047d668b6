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
	noQueue   = queue + ". Without TASK_QUEUE only the document changes, and nothing is enqueued."
	lockRooms = "DOCLOCK_DATABASE (FIRESTORE_DATABASE), DOCUMENT_LOCKS_COLLECTION (documentLocks)"
)

// commands are in the order of the usage text. demo and local start worker.
func commands() []cli.Command {
	return []cli.Command{
		{Name: "demo", Arguments: "[FILE…]", Run: local.Demo,
			Summary: "analyse files with real workers, kill one of them, and see another resume its run"},
		{Name: "local", Run: local.Local,
			Summary: "run an emulated cloud and workers until Ctrl-C; data stays in memory",
			Variables: "ANALYZER (builtin:document), ANALYZER_ENV and ANALYZER_OUTPUT; " +
				"ANALYSES_COLLECTION; the worker's LOCK_…, MAX_…, " +
				"RUN_TIMEOUT, CHECKPOINT_INTERVAL, STALL_TIMEOUT, RETRY_…, CONCURRENCY_… and KEEP_FINISHED; " +
				"with --documents, the document lock's DOCUMENT_LOCK_TTL, DOCUMENT_LOCKS_COLLECTION, " +
				"LOCKS_PER_SESSION, SOCKETS_PER_SESSION, SESSION_SECRET, PUSHER_APP_KEY, PUSHER_APP_SECRET, PUSHER_CHANNEL, " +
				"PUSHER_EVENT_NAMESPACE, ALLOWED_ORIGINS and AUTHORIZE_URL"},
		{Name: "emulator", Run: local.Emulator,
			Summary:   "run an embedded Firestore and Cloud Tasks for tests in any language; data stays in memory",
			Variables: "TASK_QUEUE: the queue without --queue"},

		{Name: "submit", Arguments: "FILE… | --input JSON", Run: operate.Submit,
			Summary: "create analyses and enqueue them", Variables: queue},
		{Name: "run", Arguments: "ID", Run: operate.Run,
			Summary: "run one analysis in this process, under its lock: as a Cloud Run job, on a GPU machine, to debug",
			Variables: "ANALYZER (required), KINDS and the worker's variables, see docs/reference.md. " +
				"TASK_AUTH, MAX_RUNS and PORT are ignored. RUN_TIMEOUT (25m) may be as long as MAX_RUN_TIME (24h). " +
				"LOG_FORMAT (text)" +
				"\n\nExit 0: READY, now or already. 1: FAILED, or no such analysis. 2: wrong usage or environment. " +
				"75: not finished: another run holds the lock, the attempt failed and will be retried, the lock was lost, " +
				"or the run was stopped. SIGTERM and Ctrl-C stop the run, release the lock and enqueue the next delivery, " +
				"within 9 seconds. A second one ends the process at once; its lock expires." +
				"\n\nExample, with the worker's environment and at most three hours:" +
				"\n\n  RUN_TIMEOUT=3h ANALYZER=exec:/app/transcribe taskguard run recording-17"},
		{Name: "status", Arguments: "[ID | --unfinished | --uncertain | --summary | FILTER]", Run: operate.Status,
			Summary:   "show one analysis, a list, or the backlog",
			Variables: database},
		{Name: "console", Run: operate.Console,
			Summary: "serve a live page for operators; read only unless --write",
			Variables: queue + "; PORT with --listen; LOG_FORMAT (text); " +
				"TASK_JWKS_URL, for tests: the address of the proxy's public keys. " +
				"On Cloud Run use a TCP probe: every HTTP request needs the proxy."},
		{Name: "unlock", Arguments: "ID | --room ROOM", Run: operate.Unlock,
			Summary:   "take the lock away, even during a run, and enqueue the analysis again unless it is finished",
			Variables: noQueue + " With --room: " + lockRooms + ", and no queue."},
		{Name: "cancel", Arguments: "ID… | FILTER", Run: operate.Cancel,
			Summary:   "mark analyses FAILED with the code cancelled; a run that is stopped this way writes nothing",
			Variables: database},
		{Name: "requeue", Arguments: "ID… | FILTER", Run: operate.Requeue,
			Summary: "reset analyses to QUEUED with 0 attempts and enqueue them; refuses a locked one. " +
				"A filter skips READY analyses unless you give --status READY", Variables: noQueue},
		{Name: "resolve", Arguments: "ID NAME (--done JSON | --not-done)", Run: operate.Resolve,
			Summary:   "record whether an uncertain side effect happened (status --uncertain), then retry the analysis",
			Variables: noQueue},
		{Name: "delete", Arguments: "ID…", Run: operate.Delete, Variables: database,
			Summary: "delete analyses with their inputs and results; refuses a locked one"},
		{Name: "recover", Run: operate.Recover, Variables: queue,
			Summary: "enqueue every orphaned analysis: unfinished, not locked, and not in the queue"},
		{Name: "restore", Arguments: "--min-token TOKEN", Run: operate.Restore, Variables: database,
			Summary: "after restoring the database, raise each fencing token to at least TOKEN"},
		{Name: "doctor", Run: operate.Doctor,
			Summary:   "check a deployment: do the service, queue, indexes and jobs fit together?",
			Variables: database + ", TASK_QUEUE; for short names also CLOUDSDK_RUN_REGION, or the region of TASK_QUEUE"},
		{Name: "env", Arguments: "--service NAME", Run: operate.Env,
			Summary:   "print the environment of a deployed service, as exports for the other commands",
			Variables: "for short names GOOGLE_CLOUD_PROJECT, and CLOUDSDK_RUN_REGION or the region of TASK_QUEUE"},

		{Name: "hold", Arguments: "--project NAME -- COMMAND [ARG…]", Run: hold.Hold,
			Summary: "run a command under a project's lock; stop it if the lock is lost; exit with its status",
			Variables: "GOOGLE_CLOUD_PROJECT, FIRESTORE_EMULATOR_HOST, " + lockRooms + "; without a project, project/.lock alone" +
				"\n\nIf the lock is lost, hold ends the command's process group. " +
				"A process that has left the group (setsid, a shell's job control) keeps running. " +
				"If hold itself gets SIGKILL, Linux kills the command but not its children."},
		{Name: "worker", Run: local.Worker,
			Summary:   "run one worker on a loopback port, as demo and local do",
			Variables: "the worker's, see docs/reference.md"},
		{Name: "version", Run: operate.Version, Summary: "print the version; also -v and --version"},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	go children.Reap(context.Background()) // ends with the process
	streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	os.Exit(cli.Run(ctx, commands(), os.Args[1:], streams, os.LookupEnv))
}
