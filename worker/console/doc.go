// Package console serves web pages for operators: the latest analyses with their
// states, locks and progress, and the changes that an operator may make.
//
// # What is guaranteed
//
//   - The lease rule decides whether a lock is held or stale, at the store's time of
//     the last read plus the time that has passed since. If no read succeeds for about
//     ten seconds, the page shows the last state, its time, and that the store does not
//     answer. Browsers only count the remaining time.
//   - A page asks every four seconds, and only while it is visible. All pages share
//     one read of the list in three seconds, one count in fifteen and one read of the
//     overdue analyses in thirty. Nothing is read when no page asks.
//   - The numbers of the states count all analyses.
//   - Progress and the history of attempts are part of each reading. Only the page of one
//     analysis reads its checkpoint, and shows whether there is one, not its contents.
//   - Inputs and results are read only on request, and are sent as text, cut at 64 KiB.
//   - Without an Operator nothing can be changed. With one, a change is a POST from the
//     confirmation page of this console, which describes what will happen. It is made only
//     in the state that this page showed. If the state has changed since, or the lock has
//     another holder, has expired, or was renewed after it had expired, the operator must
//     confirm again.
//   - A stop waits for a change. Any instance accepts the form of any other.
//   - A caller who is refused learns nothing about the analyses; the log has the reason.
//   - Without JavaScript everything works except the updates.
//
// # What is not guaranteed
//
//   - The page lists the analyses that were updated last, and up to fifty unfinished
//     ones that have not been updated for longest; for each of the four states also some
//     older ones. All others are found only by their exact id.
//   - The numbers of the locks count only what is listed.
//   - A requeue of a QUEUED analysis, or an unlock of a free one, that is pressed twice
//     books two deliveries; the second is skipped.
package console
