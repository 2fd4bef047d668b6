// Package console is one page for operators: the latest analyses with their state
// and their locks, live, and the two changes that an operator may make.
//
// # What is guaranteed
//
//   - Who holds a lock, and whether it is stale, is the lease rule's word at the
//     store's time, estimated between two readings, four a minute; it stands still
//     at the store's last answer where there are no more, or where what was updated
//     last is not told, which is noticed within half a minute. Browsers only count
//     down, and only while they are told.
//   - However many pages are open, the source is followed once, and only while
//     somebody looks: a page that was loaded counts for half a minute at least.
//   - A page is sent the present state, not a queue of events. One that is slow
//     misses states in between, and takes no memory for them.
//   - No input and no result is sent unless it is asked for, and then as text, cut
//     at 64 KiB.
//   - Without an Operator nothing can be changed. With one, a change takes a POST
//     of which the browser says that a page of this console has sent it, after a
//     page that says what will happen. It is made of what was on that page alone:
//     where the state is another since, or the lock has passed on, run out or come
//     alive again, it is asked about anew.
//   - A stop waits for a change. Any instance takes the form of any other.
//   - Who is not let in learns nothing of what is here; why stands in the log.
//   - Without JavaScript everything works but the updates.
//
// # What is not
//
//   - The page lists the analyses that were updated last, and the unfinished ones
//     that nobody has updated for longest: fifty of these, read twice a minute. All
//     others, and those without updatedAt, are found by their exact id alone.
//   - A stream that has fallen silent is known by what was updated last alone: a
//     deletion that it does not tell, and a change of what sorts below that, as a
//     Timestamp does below a string, is shown as it was until the next update.
//   - A requeue of what is QUEUED, or an unlock of what is free, leaves what the page
//     showed: pressed twice, it books twice, and the second delivery is a skip.
//   - A page that is hidden is told nothing; one that is shown takes one of the six
//     connections that a browser opens to a host.
//   - A stale lock that its owner renews in the very moment of the unlock is taken
//     all the same: its acquisition is the one that was seen.
package console
