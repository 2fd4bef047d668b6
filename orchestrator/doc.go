// Package orchestrator runs one analysis. It knows no lock, no queue and no
// document: it is given a [Job] and returns what the document will hold, or an
// error that says whether trying again can help.
//
//	analyzer, err := orchestrator.New("exec:/app/analyze --fast", orchestrator.Options{})
//	…
//	result, err := orchestrator.Run(ctx, analyzer, job)
//
// # Guarantees
//
//   - What Run returns fits into a Firestore document, by [Storable]'s rules.
//   - A [*PermanentError] means that the same job would fail again. Every other
//     error is for now, a panic included.
//   - When ctx ends, the run ends: a request is given up, a program is asked to
//     stop and then killed. No goroutine and no process of a program's group is
//     left when Run has returned.
//   - Errors show neither password nor query of an endpoint's URL.
//
// # Not guaranteed
//
//   - A job runs at least once, not exactly once. Effects elsewhere are made safe
//     by the job's LockToken: it grows with each attempt, and whoever is written
//     to refuses a smaller one than it has seen.
//   - An analyzer written in Go that ignores its context is not stopped.
//   - A process that has left its program's group (setsid, or a shell with job
//     control) is not found and not stopped; it does not hold up Run either.
//   - A process that SIGKILL does not end, being inside the kernel or another
//     user's, does hold up Run.
//   - If this process is itself killed by SIGKILL, Linux ends the program too, but
//     not the program's own children; macOS ends neither.
//   - A result may still be too large for its document where the input beside it
//     is large, or where the database indexes every field of the result: it then
//     makes at most 40,000 index entries. Exempt the field "result" from indexing.
//
// # Programs
//
// exec:PROGRAM ARG… is split at white space: no shell, no quoting. The program
// leads a process group of its own. It gets the job as one line of JSON on
// standard input, which it need not read, and ANALYSIS_ID, LOCK_TOKEN and ATTEMPT
// in its environment, beside this process's own; and, where ctx is of a trace,
// TRACEPARENT and TRACESTATE, as W3C's headers are.
//
//	exit 0            standard output is the result
//	exit 65           permanent (analyzer_rejected); the end of standard error, up to 2 KiB, is the message
//	any other, signal for now; the error shows which, and the end of standard error
//
// Output that is one JSON value from end to end is that value, output of nothing
// but white space is null, and any other is a string, without one newline at its
// end: so "echo 12" is an integer, "echo twelve" a string. It has to be UTF-8.
// Over [MaxOutputBytes] the group is ended at once (result_too_large). With
// [Options].JSON output that is not JSON, no output included, is a failure for now
// (invalid_output) instead.
//
// When ctx ends the group gets SIGTERM, and SIGKILL after [Options].Grace. If
// something in the chain of context.Cause(ctx) has a method
//
//	KillAfter() time.Duration
//
// that is shorter, that counts instead: a lock that cannot be renewed has to be
// quiet before another may take it. A program that has exited is over, also while
// children of its still hold its standard output: the result is what had been
// written by then, and the rest of the group is ended in the same way.
//
// Standard error of a program that exits 0 is dropped.
//
// # Endpoints
//
// http://… and https://… get the job by POST as application/json, with
// Idempotency-Key (the analysis's id, percent-encoded as a segment of a URL's path
// is) and X-Lock-Token; and, where ctx is of a trace, traceparent and tracestate. A
// 2xx answer's body is the result, read as a program's output is; one whose
// Content-Type is application/json has to be JSON, unless it is a 204. A 4xx other than 408, 409, 425 and 429 is
// permanent (analyzer_rejected) with the body's first 2 KiB as the message.
// Anything else is for now: other answers, redirects, which are not followed, and
// what the network does. A user and password in the URL are sent as basic
// authentication. Nothing but ctx bounds the wait for the answer.
//
// # builtin:document
//
// The input is {"name", "text"} or {"name", "base64"}; any other is permanent
// (invalid_input). The result has bytes, sha256 (hex) and media_type, and for
// UTF-8 text also lines, words (separated by white space), characters (code
// points) and top_words: the ten most frequent words of 4 to 64 letters, in lower
// case, as {"word", "count"}, equals by alphabet.
//
// # Your own
//
// An [Analyzer] in Go returns anything encoding/json can encode. The document
// holds what the JSON says: a struct is a map with the names of its tags, a
// time.Time an RFC 3339 string, a []byte a base64 string, a float64 without a
// fraction an integer, a nil slice or map null, a json.RawMessage what is in
// it. See [Storable] for what is refused.
package orchestrator
