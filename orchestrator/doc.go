// Package orchestrator runs one analysis. It does not depend on the lock, the queue
// or the database: it takes a [Job] and returns the result for the document, or an
// error that shows whether a retry can help.
//
//	analyzer, err := orchestrator.New("exec:/app/analyze --fast", orchestrator.Options{})
//	…
//	result, err := orchestrator.Run(ctx, analyzer, job)
//
// # Guarantees
//
//   - The result of Run fits into a Firestore document, by [Storable]'s rules.
//   - A [*PermanentError] means that the same job would fail again. After every
//     other error, a panic included, the job may be retried. A [*RetryAfterError] has the
//     wait that the analyzer asks for.
//   - When ctx ends, the run ends: a request is cancelled, a program gets SIGTERM
//     and then SIGKILL. When Run has returned, no goroutine and no process of the
//     program's group is running.
//   - Errors do not show the password or the query of an endpoint's URL.
//
// # Not guaranteed
//
//   - A job runs at least once, not exactly once. To make side effects elsewhere
//     safe, send the job's LockToken with them: it grows with each run, and the
//     receiver refuses a token that is smaller than the largest it has seen.
//   - An analyzer written in Go that ignores its context is not stopped.
//   - A process that has left its program's group (setsid, or a shell with job
//     control) is not stopped, and Run does not wait for it.
//   - Run does wait for a process that SIGKILL does not end, because it is inside
//     the kernel or belongs to another user.
//   - If this process is killed by SIGKILL, Linux ends the program too, but not the
//     program's children; macOS ends neither.
//   - A result may still be too large for its document if the input is large, or if
//     the database indexes every field of the result: a document has at most 40,000
//     index entries. Exempt the field "result" from indexing.
//
// # Programs
//
// exec:PROGRAM ARG… is split at white space: no shell, no quoting. The program
// leads its own process group. It gets the job as one line of JSON on
// standard input, which it need not read. Its environment is ANALYSIS_ID, LOCK_TOKEN,
// ATTEMPT, REPORT_FD and REPLY_FD, if ctx has a span TRACEPARENT and TRACESTATE as in W3C's headers,
// and of this process's own PATH, LD_LIBRARY_PATH, HOME, USER, TMPDIR, LANG, LC_*, TZ,
// SSL_CERT_FILE, SSL_CERT_DIR, HTTP_PROXY, HTTPS_PROXY and NO_PROXY (also in lower case),
// GOOGLE_CLOUD_PROJECT, FIRESTORE_EMULATOR_HOST, CLOUD_TASKS_EMULATOR_HOST and the variables
// that [Options].Env lists.
//
//	exit 0            standard output is the result
//	exit 65           permanent (analyzer_rejected); the end of standard error, up to 2 KiB, is the message
//	any other, signal to be retried; the error has the status and the end of standard error
//
// Standard output must be one JSON value. Anything else, and no output, is a failure to be retried
// (invalid_output). With [Options].AnyOutput, output that is not JSON is stored as a string without
// the newline at its end ("echo 12" is an integer, "echo twelve" a string), with a warning if it
// begins with { or [; white space alone is null. Output must be UTF-8. If it exceeds
// [MaxOutputBytes], the group is ended at once (result_too_large).
//
// When ctx ends, the group gets SIGTERM, and SIGKILL after 5 s, or sooner if an error
// in the chain of context.Cause(ctx) has a method
//
//	KillAfter() time.Duration
//
// that returns less: when a lock cannot be renewed, the program must have ended
// before another worker may take the lock. If there is a method TermAfter, too, and the Reporter is an
// [Outlaster], a program with an act that was told go gets SIGTERM when the end of that act is recorded,
// or after the time that TermAfter returns: the process stops, and the act cannot be repeated.
// When the program has exited, the output so far is the result, also while children of it still hold its standard output;
// they are ended in the same way.
//
// The standard error of a program that exits 0 is dropped.
//
// On the file descriptor that REPORT_FD names, which it need not use, the program may write
// reports: lines of JSON, each an object with any of progress, message and checkpoint (see
// [Report]). A line {"error": {"code", "message", "permanent"}} names the error of a program that
// then ends with another exit status than 0: permanent is like exit 65, and code, up to 64
// letters, digits, "_" and "-", becomes the error's code. With exit 0 the output is the result,
// with a warning (see [Warner]). A line {"retry_after": seconds} is the wait until the next attempt,
// if the program then fails temporarily; the last such line counts. Reports are read until the
// program has exited, also after ctx has ended. A line that is too long is skipped without being kept.
//
// A line with "ack" is committed at once, and then answered on the file descriptor that REPLY_FD
// names by {"ack"}, with "error" if that was impossible. {"effect": NAME, "ack"} begins a marked
// act (see [Marker]): its reply has "effect" with the "state" go and the "key" of [Job.Key], done
// with the "result", or uncertain with "since" and "token". {"effect": NAME, "done": RESULT} and
// {"effect": NAME, "not_done": true} end it, or answer an uncertain act. A program that fails
// without an answer to an uncertain act ends with an [*UncertainError]. Lines are handled one after
// another, so a program must read its replies.
//
// # Endpoints
//
// http://… and https://… get the job by POST as application/json, with
// Idempotency-Key (the analysis's id, percent-encoded like a segment of a URL's
// path; for an attempt's second call #2 follows, and so on) and X-Lock-Token and, if ctx has a
// span, traceparent and tracestate. The body
// of a 2xx answer is the result, decoded like a program's output; if its
// Content-Type is JSON (application/json, text/json, …+json) it must be JSON, except for 204.
// A 4xx other than 408, 409, 425 and 429 is permanent (analyzer_rejected). The body of an error may
// name a code and a message: {"error": {"code", "message"}}, or RFC 9457's {"title", "detail"} with
// "code". The first 2 KiB of any other body are the message. Other answers, redirects, which are not
// followed, and network errors are retried; after 429 and 503, Retry-After (seconds, or an HTTP date,
// which is compared with the answer's own Date) is the wait until then. If its Content-Type is
// application/x-ndjson, or another name of lines of JSON such as application/jsonl, the body of a 2xx
// answer is reports, and at the end {"result": …} or {"error": {"code", "message", "permanent"}}, which may
// have "retry_after" beside it, as a program's line. Nothing is read after that line; without it the job is
// retried. A user and password in the URL are sent as basic authentication. Only ctx bounds the wait for the
// answer.
//
// A last line {"effect": NAME} begins a marked act: the endpoint is called again at once, with the newest
// checkpoint, and with "effects": {NAME: {"state", …}}, as in a reply to a program. A line with "effect" and
// done or not_done ends the act, as a program's does. If ctx ends because the process stops, an endpoint that was
// told go is cancelled when the end of its act is recorded.
//
// If an endpoint's connection breaks or is refused, its lines end without a result, or a program ends by
// SIGTERM or SIGINT, Analyze waits up to 2 s for the end of ctx: in a stop of the instance, the analyzer
// may get its signal first.
//
// # builtin:document
//
// The input is {"text"} or {"base64"}; any other is permanent (invalid_input). The result has
// bytes, sha256 (hex) and media_type, as the content shows it, and for UTF-8 text also lines,
// words (separated by white space), characters (code points) and top_words: the ten most
// frequent words of 4 to 64 letters, in lower case, as {"word", "count"}, equals by alphabet.
// A text is counted in up to eleven parts of whole lines, with a report after each. Each report
// but the last has a checkpoint, unless it exceeds [MaxCheckpointBytes], from which a later
// attempt at the same text continues.
//
// # Your own
//
// An [Analyzer] in Go returns anything that encoding/json can encode. The document
// then contains the decoded JSON: a struct is a map with the names of its tags, a
// time.Time an RFC 3339 string, a []byte a base64 string, a float64 without a
// fraction an integer, a nil slice or map null. [Storable] lists what is refused.
package orchestrator
