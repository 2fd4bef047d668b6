package repo

import (
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

type store = documents[analysislock.Analysis]

// suite returns the conformance suite of the stores that open opens.
func suite(open func(t testing.TB) *store) leasetest.Suite[analysislock.Analysis] {
	s := leasetest.Suite[analysislock.Analysis]{
		New:   func(t testing.TB) lease.Store[analysislock.Analysis] { return open(t) },
		Lease: func(a *analysislock.Analysis) *lease.Lease { return &a.Lock },
		Note: func(a analysislock.Analysis) string {
			if a.LastError == nil {
				return ""
			}
			return a.LastError.Message
		},
		SetNote: func(a *analysislock.Analysis, note string) { a.LastError = &analysislock.Error{Message: note} },
		Close:   func(a *analysislock.Analysis) { a.Status = analysislock.Ready },
	}
	collection := func(s lease.Store[analysislock.Analysis]) *firestore.CollectionRef { return s.(*store).collection }
	byDocuments(&s, collection, map[string]any{"touched": 0})
	return s
}

// It also costs no more than TestOnARealProject says.
func TestStoreOnEmbedded(t *testing.T) {
	var made []*emulatortest.Backend
	s := suite(func(t testing.TB) *store {
		b := emulatortest.Embedded(t)
		made = append(made, b)
		return open(t, b).documents
	})
	s.TTL, s.Bubble = lease.DefaultTTL, true
	leasetest.Run(t, s)

	var reads, writes int64
	for _, b := range made {
		u := b.Server.Usage()
		reads, writes = reads+u.Reads, writes+u.Writes // deletes are writes here
	}
	if reads > mostReads-tableReads || writes > mostWrites || min(reads, writes) == 0 {
		t.Errorf("billed %d reads and %d writes, want at most %d and %d", reads, writes, mostReads-tableReads, mostWrites)
	}
}

func TestStoreOnGoogle(t *testing.T) {
	t.Parallel()
	emulatortest.Google(t)
	s := suite(func(t testing.TB) *store { return open(t, emulatortest.OnGoogle(t)).documents })
	s.TTL = 6 * time.Second
	leasetest.Run(t, s)
}

// inBubble runs a test on the embedded server in virtual time.
func inBubble(t *testing.T, run func(t *testing.T, b *emulatortest.Backend)) {
	t.Helper()
	emulatortest.EmbeddedKinds(t, run)
}
