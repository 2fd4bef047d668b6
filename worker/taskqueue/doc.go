// Package taskqueue books deliveries of analyses in Cloud Tasks.
//
// A booking has a deterministic name, so booking twice is booking once: Book
// asks again after any doubtful answer, and takes ALREADY_EXISTS for success.
// Cloud Tasks remembers a name for up to 24 h after its task has ended; until
// then a name that was used up is still "booked already", though nothing will
// be delivered any more. A name must therefore change with what it is for.
package taskqueue
