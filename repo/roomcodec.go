package repo

import (
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/locks/document"
)

// roomCodec is the codec of rooms. document.Locks leaves attempts, finished and
// finishedBy zero, so the documents of rooms have no such fields.
type roomCodec struct{ lockCodec }

var _ codec[document.Lock] = roomCodec{}

func (roomCodec) mask() []string { return nil }

func (c roomCodec) decode(r reading) (document.Lock, error) {
	data := r.fields
	l, err := c.decodeLock(r)
	if err != nil { // the token that replaces it lets the room be unlocked and swept
		c.warn(r, "lockToken", data["lockToken"])
	}
	l.Finished, _ = data["finished"].(bool)
	lock := document.Lock{Lease: l}
	lock.LockedAt, _ = parseTime(data["lockedAt"])
	lock.Holder, _ = data["holder"].(string)
	lock.Name, _ = data["holderName"].(string)
	lock.Unlocked, _ = data["unlocked"].(bool)
	return lock, nil
}

func (roomCodec) changes(prev document.Lock, next *document.Lock, _ time.Time) []firestore.Update {
	us := differences(roomFields(prev), roomFields(*next))
	if len(us) > 0 && prev.Token == next.Token { // the token that was read may replace an unreadable one
		us = append(us, firestore.Update{Path: "lockToken", Value: next.Token})
	}
	return us
}

// roomFields returns the fields of l, with firestore.Delete for a field that is not
// stored.
func roomFields(l document.Lock) map[string]any {
	return map[string]any{
		"lockToken":       l.Token,
		"lockOwner":       orDelete(l.Owner),
		"lockedAt":        timeValue(l.LockedAt),
		"lockHeartbeatAt": timeValue(l.HeartbeatAt),
		"lockExpiresAt":   timeValue(l.ExpiresAt),
		"holder":          orDelete(l.Holder),
		"holderName":      orDelete(l.Name),
		"unlocked":        orDelete(l.Unlocked),
		"attempts":        orDelete(l.Attempts),
		"finished":        orDelete(l.Finished),
		"finishedBy":      orDelete(l.FinishedBy),
	}
}
