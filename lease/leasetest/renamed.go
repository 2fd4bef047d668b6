package leasetest

// The names that these faults had before.
const (
	DropBefore = RequestLost
	DropAfter  = ReplyLost
	Duplicate  = SentTwice
)
