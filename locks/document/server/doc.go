// Package server serves the document lock over HTTP: Echo handlers for the lock of a
// room, a WebSocket for its events, the same events by the Pusher protocol, the sweep,
// and a page to try it on. Package document makes all decisions about locks.
//
// # Owners
//
// A lock's owner is a session, proved by the signed cookie doclock_session, or the
// subject of an OpenID Connect token; see [Cookies] and [Accounts]. The header
// X-Lock-Client, 1 to 64 of [A-Za-z0-9_-], distinguishes owners of one session: two tabs
// of one browser that send different values are two owners. It is no credential.
//
// # Guarantees
//
//   - The credential of an owner is in no event, no body and no log line.
//   - A request that a browser makes for another site changes nothing, unless
//     Options.Origins names the origin: it is refused before anything else is checked.
//   - A display name is shown only to readers with a session. Every caller gets one
//     with Cookies, unless Cookies.Application is set.
//   - Events come from the store's change stream only, so a failing stream never
//     fails the request that caused an event.
//
// # Not guaranteed
//
//   - Permission: a session may lock any room. The application decides who may edit.
//   - That a socket ends when the token that opened it expires.
package server
