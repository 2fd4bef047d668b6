//go:build unix

package operatorpool_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"taskguard/lease"
	"taskguard/lease/operatorpool"
)

// Whatever a file holds, reading it does not fail; and what is written of it, read
// and written again, is the same.
func FuzzStateFile(f *testing.F) {
	for _, seed := range []string{
		"", "null", "[]", `{}`, `{"storage":null}`, `{"storage":5}`, state("A", "kana", "2025-08-18T12:00:00.000Z"),
		`{"storage":{"A":{"data":7,"updated_at":"x","z":[{"a":1}]},"\ud800":{"data":"<&>\u2028"}},"b":1e400,"storage ":2}`,
		`{"storage":{"A":{"updated_at":"9999-12-31T23:59:59-23:59"}},"storage":{"B":{"data":null}}}`, "{\"\xff\":1,\"storage\":{\"\xfe\":{}}}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		once := encoded(t, decoded(t, data))
		if twice := encoded(t, decoded(t, once)); !bytes.Equal(once, twice) {
			t.Errorf("%q is written as %q, and that as %q", data, once, twice)
		}
		w := &world{T: t, now: noon}
		m := &lease.Memory[operatorpool.State[string]]{Now: func() time.Time { return noon }}
		m.Put("", decoded(t, data))
		if _, err := w.poolOver(w.over(m, "A")).Assign(t.Context(), ""); err != nil && !errors.Is(err, operatorpool.ErrNoneFree) {
			t.Errorf("%q: %v", data, err)
		}
		c, err := m.Load(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		after := encoded(t, c.Doc)
		if again := encoded(t, decoded(t, after)); !bytes.Equal(again, after) {
			t.Errorf("%q is changed to %q by reading it", after, again)
		}
	})
}

func decoded(t *testing.T, data []byte) operatorpool.State[string] {
	t.Helper()
	s, _, err := operatorpool.Format[string]{}.Decode("", data, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func encoded(t *testing.T, s operatorpool.State[string]) []byte {
	t.Helper()
	data, err := operatorpool.Format[string]{}.Encode("", s, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
