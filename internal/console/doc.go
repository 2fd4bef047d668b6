// Package console serves web pages for operators: all analyses with their states, locks
// and progress, the failures by code, and the changes that an operator may make.
//
// # What is guaranteed
//
//   - The lease rule decides whether a lock is held or stale, at the store's time of
//     the last read plus the time that has passed since. If no read succeeds for about
//     ten seconds, the page shows the last state, its time, and that the store does not
//     answer. Browsers only count the remaining time.
//   - The pages of a list have each analysis once that is not updated meanwhile: those that
//     run, wait for their next attempt or are stuck, up to the Limit of each, at the top of the
//     first page, and all others by their last update.
//   - A page asks every four seconds, and only while it is visible. All pages share the reads:
//     what has changed in three seconds, the analyses themselves in thirty, the counts in
//     fifteen. Nothing is read when no page asks.
//   - The numbers of the states and of the codes count all analyses.
//   - Progress and the history of attempts are part of each reading. Only the page of one
//     analysis reads its checkpoint, and shows whether there is one, not its contents.
//   - Inputs and results are read only on request, and are sent as text, cut at 64 KiB.
//   - Without an Operator nothing can be changed. With one, a change is a POST from the
//     confirmation page of this console, which describes what will happen. It is made only
//     in the state that this page showed. If the state has changed since, or the lock has
//     another holder, has expired, or was renewed after it had expired, the operator must
//     confirm again.
//   - A requeue of all failures with a code is confirmed with their number, after a dry run. It
//     takes no more than this number, and none that has failed since. Each is changed only if it
//     is as it was listed. The changes are made during the request, within about 20 s, and
//     nothing goes on afterwards.
//   - A stop waits for a change. Any instance accepts the form of any other.
//   - A caller who is refused learns nothing about the analyses; the log has the reason.
//   - Without JavaScript everything works except the updates.
//
// # What is not guaranteed
//
//   - An analysis without updatedAt is found only by its id.
//   - An analysis that another program changes without updatedAt, or deletes, is shown as it was
//     for up to thirty seconds. So is one of more than Limit that change within three seconds.
//   - Analyses whose updatedAt has another type than a string come after those, by the type.
//   - A requeue of a QUEUED analysis, or an unlock of a free one, that is pressed twice
//     books two deliveries; the second is skipped.
package console
