// Package doclock is the document lock over HTTP (D1 to D4): Echo handlers for
// the lock of a room, a WebSocket that tells of its changes, the sweep, and the
// page to try it on. It decides nothing about locks; documentlock does.
//
// # Who asks
//
// A lock's owner is a session, proved by the signed cookie doclock_session, or
// the subject of an OpenID Connect token; see [Cookies] and [Accounts]. The
// header X-Lock-Client, 1 to 64 of [A-Za-z0-9_-], parts the owner further: two
// tabs of one browser that each send their own are two owners. It is no
// credential: it only tells one's own tabs apart.
//
// # What is guaranteed
//
//   - What proves an owner is in no event, no body and no log line.
//   - Requests that a browser makes for another site change nothing: they are
//     refused before anything else is looked at.
//   - Events come from the store's change stream alone, so what becomes of them
//     never fails the request that caused them.
//
// # What is not
//
//   - Whoever has a session may lock any room: who may edit what is for the
//     application to decide.
//   - A socket is not ended when the token that opened it expires.
package doclock
