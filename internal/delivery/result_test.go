package delivery

import (
	"log/slog"
	"testing"
)

// A delivery that is acknowledged although its analysis is unfinished and nothing is booked loses the
// analysis until a recovery. A delivery that is never acknowledged is repeated without end. An operator is
// warned of what may need him, and of nothing else.
func TestResult_Acknowledge(t *testing.T) {
	const always, ifBooked, ifParked, never = "always", "if the next is booked or needless", "if parked", "never"
	rows := map[Reason]struct {
		ack        string
		rejectedAt int    // the try of the task; zero: never
		info       string // when it is logged as INFO, and otherwise as WARN
	}{
		Completed:       {always, 0, always},
		Failed:          {always, 0, never},
		AlreadyFinished: {always, 0, always},
		Forwarded:       {always, 0, always},
		Started:         {always, 0, always},
		Locked:          {ifBooked, 0, always},
		Waiting:         {ifBooked, 0, ifBooked},
		Suspect:         {ifBooked, 0, ifBooked},
		KeyBusy:         {ifParked, 0, ifParked},
		Retry:           {ifBooked, 0, never},
		LockLost:        {ifBooked, 0, never},
		ShuttingDown:    {ifBooked, 0, ifBooked},
		Continued:       {ifBooked, 0, ifBooked},
		NotClaimed:      {never, 0, never},
		NotFound:        {never, 6, never},
		InvalidID:       {never, 1, never},
		Unavailable:     {never, 0, never},
		FinishUnknown:   {never, 0, never},
		Malformed:       {never, 6, never},
		Corrupted:       {never, 6, never},
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
		for rule, next := range map[string]Next{
			always: {}, ifBooked: {FollowUp: "booked"}, ifParked: {Parked: true},
		} {
			level := slog.LevelWarn
			if row.info == always || row.info == rule {
				level = slog.LevelInfo
			}
			if got := (Result{Reason: reason, Next: next}).Level(); got != level {
				t.Errorf("%d (%s), %+v: logged as %s, want %s", reason, reason, next, got, level)
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
