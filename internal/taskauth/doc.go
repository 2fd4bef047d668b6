// Package taskauth authenticates the deliveries of our own Cloud Tasks queue and
// Cloud Scheduler job by their ID token (OIDC), and the people whom Identity-Aware
// Proxy lets in by its signed assertion (IAP).
//
// # What is guaranteed
//
//   - A request passes only with a token that Google signed (RS256) for our audience,
//     that is not expired, with a verified e-mail address on our list.
//   - With Options.AnyAccount, for people, every account with a subject passes, and
//     Subject distinguishes them.
//   - IAP returns a person's address only from an assertion that the proxy signed
//     (ES256) for our resource and that is not expired.
//   - A token that names a known key is checked without a network call, except for one caller an
//     hour, who fetches the keys again. A cold start, a rotation of the keys and any number of
//     callers cost one fetch, and unknown key ids cost at most one in 10 s.
//   - While Google's page of keys is unreachable or invalid, the last good keys are used.
//   - Errors and logs have fixed texts. They contain no part of a token, a header or a
//     claim.
//
// # What is not guaranteed
//
//   - A token can be used again until it expires: a reader of one delivery can
//     repeat it. A repeated delivery does no more than a duplicate.
//   - A key that Google withdraws is trusted for up to an hour longer, or for as long as
//     the page is unreachable.
//   - Behind Cloud Run's own check the token arrives without its signature, so this
//     package refuses everything there: use one or the other.
package taskauth
