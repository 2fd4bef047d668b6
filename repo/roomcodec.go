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
	var lock document.Lock
	var err error
	if lock.Lease, err = c.decodeLock(r); err != nil { // with the assumed token, the room can be unlocked and swept
		c.warn(r, "lockToken", data["lockToken"])
	}
	lock.Finished, _ = data["finished"].(bool)
	lock.LockedAt, _ = parseTime(data["lockedAt"])
	lock.Holder, _ = data["holder"].(string)
	lock.Name, _ = data["holderName"].(string)
	lock.Unlocked, _ = data["unlocked"].(bool)
	return lock, nil
}

func (roomCodec) changes(prev document.Lock, next *document.Lock, _ time.Time) []firestore.Update {
	updates := differences(roomFields(prev), roomFields(*next))
	if len(updates) > 0 && prev.Token == next.Token { // the document may have an unreadable token
		updates = append(updates, firestore.Update{Path: "lockToken", Value: next.Token})
	}
	return updates
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
