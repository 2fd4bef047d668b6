package simulate

import (
	"math"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// at is an operation between two seconds; the times in it are seconds too.
func at(call, answered int64, op operation) operation {
	op.call, op.answered = call, answered
	return op
}

func TestTheCheckerRejectsWhatNoLockMayDo(t *testing.T) {
	const ttl, never = 10, math.MaxInt64
	first := at(0, 1, operation{kind: acquire, answer: ok, owner: "a", token: 1, expires: 10})
	for name, c := range map[string]struct {
		rest []operation
		want porcupine.CheckResult
	}{
		"a second grant after the expiry": {
			[]operation{at(11, 12, operation{kind: acquire, answer: ok, owner: "b", token: 2, expires: 21})}, porcupine.Ok,
		},
		"two grants of one token": {
			[]operation{at(11, 12, operation{kind: acquire, answer: ok, owner: "b", token: 1, expires: 21})}, porcupine.Illegal,
		},
		"a grant while held": {
			[]operation{at(2, 3, operation{kind: acquire, answer: ok, owner: "b", token: 2, expires: 15})}, porcupine.Illegal,
		},
		"a grant after a renewal whose reply was lost and that never arrived": {
			[]operation{
				at(5, never, operation{kind: renew, answer: unknown, owner: "a", token: 1, expires: 15}),
				at(11, 12, operation{kind: acquire, answer: ok, owner: "b", token: 2, expires: 21}),
			}, porcupine.Ok,
		},
		"a grant in spite of a renewal": {
			[]operation{
				at(5, 6, operation{kind: renew, answer: ok, owner: "a", token: 1, expires: 15}),
				at(11, 12, operation{kind: acquire, answer: ok, owner: "b", token: 2, expires: 21}),
			}, porcupine.Illegal,
		},
		"a finish after another's grant": {
			[]operation{
				at(11, 12, operation{kind: acquire, answer: ok, owner: "b", token: 2, expires: 21}),
				at(13, 14, operation{kind: finish, answer: ok, owner: "a", token: 1}),
			}, porcupine.Illegal,
		},
		"two finishes": {
			[]operation{
				at(3, 4, operation{kind: finish, answer: ok, owner: "a", token: 1}),
				at(5, 6, operation{kind: finish, answer: ok, owner: "a", token: 1}),
			}, porcupine.Illegal,
		},
		"a loss that was none": {
			[]operation{at(3, 4, operation{kind: finish, answer: refused, owner: "a", token: 1})}, porcupine.Illegal,
		},
		"finished before the finish": {
			[]operation{
				at(3, 4, operation{kind: acquire, answer: finished, owner: "b"}),
				at(5, 6, operation{kind: finish, answer: ok, owner: "a", token: 1}),
			}, porcupine.Illegal,
		},
		"finished by a finish of unknown outcome": {
			[]operation{
				at(3, never, operation{kind: finish, answer: unknown, owner: "a", token: 1}),
				at(5, 6, operation{kind: acquire, answer: finished, owner: "b"}),
			}, porcupine.Ok,
		},
		"still held after an unlock": {
			[]operation{
				at(3, 4, operation{kind: unlock, answer: ok}),
				at(5, 6, operation{kind: acquire, answer: heldBy, owner: "a", token: 1, expires: 10}),
			}, porcupine.Illegal,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := checked(append([]operation{first}, c.rest...), time.Duration(ttl)); got != c.want {
				t.Errorf("porcupine says %s, want %s", got, c.want)
			}
		})
	}
}
