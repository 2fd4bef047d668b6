// Package console is one page for operators: the latest analyses with their state
// and their locks, and the two changes that an operator may make.
//
// # What is guaranteed
//
//   - The lease rule decides who holds a lock and whether it is stale, at the store's
//     time of the last reading plus what has passed since. Without a reading for
//     about ten seconds that time stands still, and the page says that the store does
//     not answer and how old it is. Browsers only count down.
//   - A page asks every four seconds, and only while it is visible. All pages share
//     one reading of the list in three seconds, one of the numbers in fifteen and one
//     of the overdue analyses in thirty. Nothing is read when no page asks.
//   - The numbers of the states count all analyses.
//   - No input and no result is read unless it is asked for, and then sent as text,
//     cut at 64 KiB.
//   - Without an Operator nothing can be changed. With one, a change takes a POST
//     that the browser says a page of this console has sent, after a page that says
//     what will happen. It applies only to what that page showed: where the state has
//     changed since, or the lock has another holder, has expired or was renewed after
//     it had expired, the operator is asked again.
//   - A stop waits for a change. Any instance takes the form of any other.
//   - Whoever is not admitted learns nothing of what is here; the log says why.
//   - Without JavaScript everything works but the updates.
//
// # What is not
//
//   - The page lists the analyses that were updated last, and the unfinished ones
//     that have not been updated for longest, fifty of these; of one of the four
//     states also some older ones. All others are found by their exact id alone.
//   - The numbers beside the locks count what is listed.
//   - A requeue of a QUEUED analysis, or an unlock of a free one, leaves what the page
//     showed: pressed twice, it books twice, and the second delivery is a skip.
//   - A stale lock that its owner renews in the very moment of the unlock is taken
//     all the same: its acquisition is the one that was seen.
package console
