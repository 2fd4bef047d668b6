// Package worker guards the work of a service: each piece of work runs under a lock and
// finishes once, however often Cloud Tasks delivers it and whichever instance Cloud Run
// kills. Firestore keeps the documents and their locks.
//
// # Overview
//
// [Open] connects a [Guard] to Firestore and to a queue. [FromEnv] reads its [Options] from the
// environment, and [Guard.Shutdown] ends it.
//
// A [Kind] is a collection of documents and the function Run, which does the work of one of
// them; [Typed] makes a Run of a function with types of its own. [Submit] creates a document
// and books its delivery. [Guard.Handler], [Guard.Echo], [Guard.PubSub] and [Guard.Eventarc]
// are handlers of deliveries: they acquire the document's lock, renew it during Run, write the
// result, book the next delivery where one is needed, and answer. [Guard.Recovery] books what a
// crash has left, [Guard.Health] serves the health checks, and [Guard.Routes] is all of them.
//
// [Do] needs neither documents nor routes: it runs a function once for a key, and returns its
// stored result to every later caller.
//
// # Guarantees
//
//   - Run and the function of Do have the lock of their document or key, and their context ends
//     before another run may take it. What a run without the lock returns is not stored.
//   - A document that is finished stays finished; only an operator reopens it.
//   - A delivery is acknowledged only if its document is finished, or another delivery is
//     booked, or it can never succeed.
//   - Only Firestore's clock decides whether a lock has expired.
//
// # Not guaranteed
//
//   - That a function runs only once: it runs again after a crash, a lost lock or an error, and
//     if it ignores its context, beside its successor. Pass [Job].LockToken to what it calls,
//     and refuse a lower one there; taskguard/repo/fence does that.
//   - Without a Queue, that work is run again at all, unless its sender delivers it again.
//
// Package taskguard/lease has the rules of the lock. docs/library.md is a guide, and
// docs/reference.md has the answers, the fields of the documents and the logs.
package worker
