// Package console serves web pages for operators: all analyses with their states, locks
// and progress, the failures by code, and the changes that an operator may make.
//
// # What is guaranteed
//
//   - The lease rule decides whether a lock is held or stale, at the store's time of
//     the last read plus the time that has passed since. If a read fails, the page shows
//     the last state, its time, and that the store does not answer. Browsers only count the
//     remaining time.
//   - No page waits for another one's read. In an outage a page is answered at once with what
//     was read before; if nothing was, after 5 s.
//   - The pages of a list have each analysis once if it is not updated meanwhile: analyses that
//     are uncertain, stuck, wait for their next attempt or run at the top of the first page, up to 50 uncertain
//     ones and the Limit of each of the others, and all others by their last update. Above them is a line for
//     each cause of the last 50 failures of three hours. Both are read every 32 s.
//   - A page says whether it sorts all analyses or only the ones that it shows.
//   - A page asks every four seconds, and only while it is visible. All pages with the same
//     filter share one read of what they show, at most every eight seconds; all pages share
//     the counts, at most every sixteen. Nothing is read when no page asks.
//   - The backlog on the first page without a filter is counted at most every 32 s, and less
//     often if it costs more than a read a second. If a read fails, it keeps its last state.
//   - The numbers of the states and of the codes count all analyses. The lines of the failures
//     show the newest twenty of each code. An analysis that ran out of attempts counts
//     with the code of its last error. The page has the fifty codes with the most analyses, and
//     says how many are left out.
//   - The run times are read only when somebody opens their page, for all at most every five minutes,
//     and less often if that costs more than five reads a second: up to 100 analyses of each of 24 hours. A
//     page that shows a sample says so.
//   - Progress and the history of attempts are part of each reading. Only the page of one
//     analysis reads its checkpoint, and shows whether there is one, not its contents.
//   - Inputs and results are read only on request, and are sent as text, cut at 64 KiB.
//   - Without an Operator nothing can be changed. With one, a change is a POST from the
//     confirmation page of this console, which describes what will happen. It is made only
//     in the state that this page showed. If the state has changed since, or the lock has
//     another holder, has expired, or was renewed after it had expired, the operator must
//     confirm again.
//   - An unlock is offered if the lock has expired, or if its owner has sent no heartbeat for longer
//     than a heartbeat interval and the margin. Its page says how long two runs may overlap.
//   - A requeue or a cancellation of all that a filter selects is confirmed with their number,
//     after a dry run. It takes no more than this number, none that was updated since, and none
//     that is held. Each is changed only if it is as it was listed. The changes are made during
//     the request, within about 20 s, and nothing goes on afterwards.
//   - Selected analyses are confirmed with the state of each, and each is changed only if it still is in that state.
//     A form changes at most 200. After a delivery that could not be booked, no further change begins.
//   - A stop waits for a change. Any instance accepts the form of any other.
//   - A value that no analysis has is refused before anything is read, and so is a request that
//     a page of another site makes, unless it leads the browser's window here.
//   - A caller who is refused learns nothing about the analyses; the log has the reason.
//   - Without JavaScript everything works except the updates, local times, and selecting all rows at once.
//
// # What is not guaranteed
//
//   - The backlog's intervals do not count what was requeued or deleted since, and its number of
//     stuck analyses may be too low: analyses that wait for their next attempt may hide some.
//   - Of more than 200 codes, only the first 200 by name are counted.
//   - An analysis without updatedAt is found only by its id.
//   - What has changed is shown up to twelve seconds later, in the backlog half a minute or
//     more, but at once after a change on this console.
//   - Analyses whose updatedAt has another type than a string come after those, by the type.
//   - A requeue of a QUEUED analysis, or an unlock of a free one, that is pressed twice
//     books two deliveries; the second is skipped.
package console
