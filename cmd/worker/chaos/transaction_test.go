package chaos

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	fs "cloud.google.com/go/firestore"
)

// Another program writes other fields of the analysis just before the first two
// commits, so that the third is decided in a transaction; and that one has the
// fault.
func TestAFaultOnACommitInATransactionIsNotSeenOutside(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(*run) int { return http.StatusOK })
	faults, kinds := map[string]fault{}, map[string]kind{}
	for _, k := range []kind{acquire, finish} {
		for i, f := range commitFaults {
			if f.apply == later { // the transaction has been rolled back by then
				continue
			}
			id := fmt.Sprintf("%s-%d", k, i)
			faults[id], kinds[id] = fault{name: id, apply: f.apply, code: f.code}, k
		}
	}
	s.proxy.script(func(now *call) fault {
		f, ok := faults[now.doc]
		switch {
		case !ok || now.kind != kinds[now.doc] || now.nth > 3:
			return fault{}
		case now.nth == 3:
			return f
		}
		if _, err := s.doc(now.doc).Set(t.Context(), map[string]any{"note": now.nth}, fs.MergeAll); err != nil {
			t.Error(err)
		}
		return fault{}
	})
	p := s.start(t, "LOCK_TTL=20s")
	var done sync.WaitGroup
	for id := range faults {
		s.create(t, id, nil)
		done.Go(func() {
			if got := p.deliver(t.Context(), id); !got.is(http.StatusOK, `"lock_token":1`) {
				t.Errorf("%s: %s", id, got)
			}
			n, injected := s.proxy.tally(id), s.proxy.count(id)
			if n[acquire] != 1 || n[finish] != 1 || injected != 1 {
				t.Errorf("%s: injected %d times, written %v", id, injected, n)
			}
		})
	}
	done.Wait()
	n := 0
	for k, calls := range s.proxy.seen {
		if k.method == "BeginTransaction" {
			n += calls
		}
	}
	if n < len(faults) {
		t.Errorf("%d transactions, want %d or more", n, len(faults))
	}
}
