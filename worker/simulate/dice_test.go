package simulate

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// dice is a seed. What is drawn depends on it and on what it is drawn for, and
// on nothing else.
type dice uint64

// of are the draws for one identity.
func (d dice) of(identity ...any) *draw {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, uint64(d), identity) // a hash takes everything
	return &draw{rand.New(rand.NewPCG(h.Sum64(), uint64(d)))}
}

type draw struct{ *rand.Rand }

func (d *draw) chance(p float64) bool { return d.Float64() < p }

// between is a time in [least, most), to the nanosecond.
func (d *draw) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.Int64N(int64(most-least)))
}

func pick[T any](d *draw, of ...T) T { return of[d.IntN(len(of))] }
