package delivery

import "testing"

// A delivery that is acknowledged although its analysis is unfinished and nothing is booked loses the
// analysis until a recovery. A delivery that is never acknowledged is repeated without end.
func TestResult_Acknowledge(t *testing.T) {
	const always, ifBooked, ifParked, never = "always", "if the next is booked or needless", "if parked", "never"
	rows := map[Reason]struct {
		ack        string
		rejectedAt int // the try of the task; zero: never
	}{
		Completed:       {always, 0},
		Failed:          {always, 0},
		AlreadyFinished: {always, 0},
		Forwarded:       {always, 0},
		Started:         {always, 0},
		Locked:          {ifBooked, 0},
		Waiting:         {ifBooked, 0},
		Suspect:         {ifBooked, 0},
		KeyBusy:         {ifParked, 0},
		Retry:           {ifBooked, 0},
		LockLost:        {ifBooked, 0},
		ShuttingDown:    {ifBooked, 0},
		Continued:       {ifBooked, 0},
		NotClaimed:      {never, 0},
		NotFound:        {never, 6},
		InvalidID:       {never, 1},
		Unavailable:     {never, 0},
		FinishUnknown:   {never, 0},
		Malformed:       {never, 6},
		Corrupted:       {never, 6},
	}
	for reason := range numReasons {
		row, exists := rows[reason]
		if !exists || reason.String() == "" {
			t.Errorf("reason %d has no row", reason)
		}
		check := func(next Next, d Delivery, ack, rejected bool) {
			r := Result{Reason: reason, Next: next}
			if r.acknowledge(d); r.Ack != ack || r.Rejected != rejected {
				t.Errorf("%d (%s), %+v, %+v: acknowledged %t, rejected %t; want %t, %t",
					reason, reason, next, d, r.Ack, r.Rejected, ack, rejected)
			}
		}
		message, acked := Delivery{Task: "not a task's name", Tries: 9}, row.ack == always
		check(Next{}, message, acked, false)
		check(Next{FollowUp: "failed"}, message, acked, false)
		check(Next{FollowUp: "booked"}, message, acked || row.ack == ifBooked, false)
		check(Next{Needless: true}, message, acked || row.ack == ifBooked, false)
		check(Next{Parked: true}, message, acked || row.ack == ifParked, false)

		for try := range 8 { // zero is unknown, and counts as the first
			rejected := row.rejectedAt > 0 && max(try, 1) >= row.rejectedAt
			check(Next{}, Delivery{Task: "task", Tries: try}, acked || rejected, rejected)
		}
	}
}
