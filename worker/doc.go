// Package worker guards the work of a service: each piece of work runs under a lock and
// finishes once, however often Cloud Tasks delivers it and whichever instance Cloud Run
// kills. Firestore keeps the documents and their locks. docs/library.md is a guide.
//
// [Open] connects a [Guard] to Firestore and to a queue. [FromEnv] reads its [Options] from the
// environment, and [Guard.Shutdown] ends it. A [Kind] is a collection of documents and the
// function Run, which does the work of one of them; [Typed] decodes its input. [Guard.Register]
// adds it to the Guard. [Work.Submit] creates a document and books its delivery. [Work.Handler],
// [Work.Echo], [Work.PubSub] and [Work.Eventarc] handle deliveries: they acquire the document's
// lock, renew it during Run, write the result, book the next delivery where one is needed, and
// answer. [Work.Operator] has what the commands of taskguard use. [Guard.Recovery]
// books deliveries of orphaned documents, [Guard.Health] serves health checks, and [Guard.Routes]
// serves all of these routes.
//
// [Do] needs no documents and no routes: it runs a function once for an operation and a key, and
// returns the stored result to every later caller. [DoOutcome] has options, [Lookup] reads an
// outcome, and [Reset] lets the function run again. [Guard.Idempotent] is a middleware that runs an
// HTTP handler once for the header Idempotency-Key.
//
// # Guarantees
//
//   - The context of Run, and of the function of Do, ends before another run may take the lock.
//     The result of a run that has lost its lock is not stored. A finished document stays
//     finished.
//   - A delivery is acknowledged only if its document is finished, or another delivery is
//     booked, or it is parked behind a run of its key whose end books it, or it can never succeed.
//   - Only Firestore's clock decides whether a lock has expired.
//
// # Not guaranteed
//
//   - That a function runs only once: it runs again after a crash, a lost lock or an error. A
//     function that ignores its context may still run when the next run begins. Pass
//     [Job].LockToken to the services that it calls, and refuse a lower token there;
//     taskguard/repo/fence does that.
//   - That work runs again without a Queue, unless its sender delivers it again.
package worker
