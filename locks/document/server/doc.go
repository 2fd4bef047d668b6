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
//   - A socket ends when the session that opened it expires, and a channel's when the session that
//     authorized it does. A signature by the application has no expiry.
//   - A display name or a user's id is shown only to readers with a session. Every caller gets one
//     with Cookies, unless Cookies.Application is set.
//   - Events come from the store's change stream only, so a failing stream never
//     fails the request that caused an event.
//
// # Not guaranteed
//
//   - Permission without Options.Authorize: a session may lock any room.
//   - That a permission which is withdrawn ends at once: within 10 s, and for a socket within 70 s.
package server
