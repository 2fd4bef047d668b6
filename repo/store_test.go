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

// onBackend is the store under test, with another program's access to its documents.
type onBackend struct {
	*documents[analysislock.Analysis]
	b *emulatortest.Backend
}

func suite(backend func(testing.TB) *emulatortest.Backend) leasetest.Suite[analysislock.Analysis] {
	at := func(s lease.Store[analysislock.Analysis]) *emulatortest.Backend { return s.(onBackend).b }
	return leasetest.Suite[analysislock.Analysis]{
		New: func(t testing.TB) lease.Store[analysislock.Analysis] {
			b := backend(t)
			return onBackend{documents: open(t, b).documents, b: b}
		},
		Create: func(t testing.TB, s lease.Store[analysislock.Analysis], key string) {
			at(s).Put(t, key, map[string]any{"touched": 0})
		},
		Delete: func(t testing.TB, s lease.Store[analysislock.Analysis], key string) { at(s).Delete(t, key) },
		Touch: func(t testing.TB, s lease.Store[analysislock.Analysis], key string) {
			at(s).Merge(t, key, map[string]any{"touched": firestore.Increment(1)})
		},
		Touched: func(t testing.TB, s lease.Store[analysislock.Analysis], key string) int {
			n, _ := at(s).Fields(t, key)["touched"].(int64)
			return int(n)
		},
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
}

func TestStoreOnEmbedded(t *testing.T) {
	s := suite(emulatortest.Embedded)
	s.TTL, s.Bubble = lease.DefaultTTL, true
	leasetest.Run(t, s)
}

func TestStoreOnGoogle(t *testing.T) {
	t.Parallel()
	emulatortest.Google(t)
	s := suite(emulatortest.OnGoogle)
	s.TTL = 6 * time.Second
	leasetest.Run(t, s)
}

// inBubble runs a test on the embedded server in virtual time.
func inBubble(t *testing.T, run func(t *testing.T, b *emulatortest.Backend)) {
	t.Helper()
	emulatortest.EmbeddedKinds(t, run)
}

func TestStoreWithPessimisticTransactions(t *testing.T) {
	s := suite(emulatortest.Embedded)
	s.New = func(t testing.TB) lease.Store[analysislock.Analysis] {
		b := emulatortest.Embedded(t)
		docs := open(t, b).documents
		docs.pessimistic = true
		return onBackend{documents: docs, b: b}
	}
	s.TTL, s.Bubble = lease.DefaultTTL, true
	leasetest.Run(t, s)
}
