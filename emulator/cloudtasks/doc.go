// Package cloudtasks is an in-memory Cloud Tasks (google.cloud.tasks.v2) for
// local runs and tests. Google publishes no emulator; Google's own clients run
// against this one, over TCP or in-process, also inside a testing/synctest
// bubble, where backoffs of minutes pass at once.
//
// # What is reproduced
//
//   - At-least-once delivery: an answer of 200–299 deletes the task, any other
//     answer or none retries it with the queue's backoff. [Options.Extra] adds
//     the duplicates that the service sends rarely and a worker must survive.
//   - The dispatch deadline: when it passes, the request is closed and retried,
//     and nothing stops the worker, so two runs overlap.
//   - The X-CloudTasks headers, and no Content-Type but the creator's.
//   - Refusals: the limits on queues and tasks that the service documents, or that were
//     recorded from it, are INVALID_ARGUMENT. A task's size is the size of its stored form.
//   - Headers are stored under the creator's own names, without the headers that Cloud Tasks sets.
//   - Names: ALREADY_EXISTS while the task exists and for 24 h after it ended.
//   - Retries end after maxAttempts; with -1 they never end.
//   - maxConcurrentDispatches and Retry-After. Retries come exactly when these and the
//     backoff permit, or with [Options.Spread] a random part of the wait later.
//   - With [AsDocumented], the throttling of a whole queue after 429, 503 or many
//     errors, and the slow start of a new or idle one.
//
// # What is not
//
//   - Data survive nothing: they are gone with the [Server].
//   - Redirects are not followed; a 3xx answer is a failure.
//   - Tokens: an oidc_token is signed by [Options.Token], whose issuer is not
//     Google; without Token, and for every oauth_token, a task is dispatched
//     without Authorization. Callers are not authenticated, and there is no IAM.
//   - The service deletes a task at the age of 31 days.
//   - The basic view of a task omits its body alone, and ListQueues returns one page.
//   - UNIMPLEMENTED, with the name of the call or field: UpdateQueue, DeleteQueue, RunTask,
//     IAM policies, App Engine targets, a queue's http_target, maxDispatchesPerSecond and
//     maxRetryDuration, a task's own retry_config, the filter of ListQueues.
//   - The service documents no X-CloudTasks-TaskPreviousResponse for an attempt
//     without an answer; here it is 504 after the dispatch deadline, else 503.
package cloudtasks
