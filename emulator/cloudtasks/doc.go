// Package cloudtasks is an in-memory Cloud Tasks (google.cloud.tasks.v2) for
// local runs and tests. Google publishes no emulator; Google's own client runs
// against this one, over TCP or in-process, also inside a testing/synctest
// bubble, where backoffs of minutes pass at once.
//
// # What is reproduced
//
//   - At-least-once delivery: an answer of 200–299 deletes the task, anything
//     else or no answer retries it with the queue's backoff. [Options.Extra] adds
//     the duplicates that the service sends rarely and a worker must survive.
//   - The dispatch deadline: when it passes, the request is closed and retried,
//     and nothing stops the worker, so two runs overlap.
//   - The X-CloudTasks headers, and no Content-Type but the creator's.
//   - Names: ALREADY_EXISTS while the task exists and for 24 h after it ended.
//   - Retries end when maxAttempts and maxRetryDuration are both spent. A limit
//     that is unlimited (-1, 0) is left out of account; if both are, retries go
//     on until the task is 31 days old.
//   - maxConcurrentDispatches, maxDispatchesPerSecond, Retry-After, PauseQueue,
//     and RunTask, which dispatches regardless of all of them.
//
// # What is not
//
//   - Data survive nothing: they are gone with the [Server].
//   - Redirects are not followed; a 3xx answer is a failure.
//   - Tokens: an oidc_token is minted by [Options.Token], whose issuer is not
//     Google; without Token, and for every oauth_token, a task is dispatched
//     without Authorization. Nobody checks that the service account exists or may
//     be acted as. Authentication of callers and IAM are absent.
//   - The service slows a whole queue after 429, 503 or many errors, and ramps up
//     an idle one; here only the queue's own limits slow it.
//   - A name's 24 h are kept for the last 262,144 named tasks of a queue that
//     ended, and are forgotten with a deleted queue, whose name is free at once
//     (the service may hold it for 3 days).
//   - UNIMPLEMENTED: App Engine targets, a queue's http_target, list filters,
//     batches, IAM policies, CMEK.
//   - The service documents no X-CloudTasks-TaskPreviousResponse for an attempt
//     that got no answer; here it is 504 after the dispatch deadline, else 503.
package cloudtasks
