// Package taskauth tells the deliveries of our own Cloud Tasks queue and Cloud
// Scheduler job from everybody else's, by the ID token (OIDC) that they carry; and
// the people that Identity-Aware Proxy let through from everybody else, by its
// signed assertion (IAP).
//
// # What is guaranteed
//
//   - A request passes only with a token that Google signed (RS256), for our
//     audience, not expired, of a verified e-mail address that is on our list.
//     Everything else is an error: nothing here fails open.
//   - With Options.AnyAccount, for people, the address does not matter: whoever
//     Google names a subject passes, and Subject tells them apart.
//   - IAP answers a person's address only from an assertion that the proxy signed
//     (ES256) for our resource, not expired.
//   - Check reaches no network itself. One goroutine, Run, gets the keys; a cold
//     start, a rotation of the keys and any number of callers cost one fetch, and
//     forged key ids cost at most one in 10 s.
//   - Google's page of keys may be out of reach for 24 h, or answer nonsense: the
//     last good keys go on.
//   - Errors and logs are of a fixed vocabulary. No part of a token, a header or a
//     claim is in them.
//
// # What is not
//
//   - A token can be used again until it expires: whoever reads one delivery can
//     repeat it. Deliveries come more than once anyway, and a repeated one does no
//     more than a duplicate.
//   - A key that Google withdraws is trusted for up to an hour longer, or up to
//     24 h while the page is out of reach.
//   - Behind Cloud Run's own check the token arrives without its signature, so
//     this package refuses everything there: it is one or the other.
package taskauth
