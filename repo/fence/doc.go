// Package fence refuses the late side effects of a worker that has lost its lock.
//
// A lock cannot stop a worker that pauses, loses the lock meanwhile, and then sends the
// request or the write that it had prepared. So each acquisition has a token larger than
// all earlier ones (Job.LockToken, or the header X-Lock-Token). The receiver of the side
// effect refuses a token lower than the highest that it has accepted. It accepts an equal
// one, since a run may write several times. [Fence.Commit] checks the token and makes the
// caller's writes to Firestore in one commit. [Fence.Middleware] checks a request before it
// calls the handler. PostgreSQL and SQLite need no [Fence]: this statement affects no row if
// the token is stale.
//
//	INSERT INTO invoices (key, token, amount) VALUES ($1, $2, $3)
//	ON CONFLICT (key) DO UPDATE SET token = excluded.token, amount = excluded.amount
//	WHERE excluded.token >= invoices.token
//
// For writes to other tables, begin their transaction with such a statement on a table of
// keys and tokens, and roll back if it affects no row. It locks the row until the commit.
//
// Tokens of different locks cannot be compared, so give each kind of work its collection of
// fences, with a key for each lock. A record that another program deletes and creates again
// begins at token 1: delete its fence too.
//
// # What a fence cannot refuse
//
//   - A stale token that arrives before any newer one. For example, no worker ever has the
//     token of a cancel. Nothing shows that the older token is stale.
//   - With Middleware, a request that passes the check and acts after a newer one has
//     acted. Only a check in the same commit as the write is exact: Commit, or SQL.
//   - A stale token that arrives after its fence was removed. A TTL policy on expireAt, a
//     Timestamp, removes old fences, at the earliest half of Options.Keep after the last
//     accepted token. So no write may be later than that.
package fence
