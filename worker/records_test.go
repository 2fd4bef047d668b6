package worker

import (
	"encoding/json"
	"testing"
)

func TestHash(t *testing.T) {
	raw := func(text string) any { return json.RawMessage(text) }
	for name, c := range map[string]struct {
		a, b any
		same bool
	}{
		"pointers":             {&struct{ A int }{1}, &struct{ A int }{1}, true},
		"a struct and a map":   {struct{ B, A any }{1, "<"}, raw(`{"A": "\u003c", "B": 1}`), true},
		"another value":        {struct{ A int }{1}, struct{ A int }{2}, false},
		"large integers":       {raw(`9007199254740993`), raw(`9007199254740992`), false},
		"a decimal":            {raw(`[1, 100, -0.5, 0]`), raw(`[1.0, 1E+2, -50e-2, -0e5]`), true},
		"close to 1":           {raw(`1`), raw(`1.00000000000000000001`), false},
		"texts, not numbers":   {raw(`"1.0"`), raw(`"1"`), false},
		"a number of 1 GB":     {raw(`1e999999999`), raw(`1e999999998`), false},
		"a number of 1 GB too": {raw(`1e999999999`), raw(`1e999999999`), true},
	} {
		a, errA := hash(c.a)
		b, errB := hash(c.b)
		if errA != nil || errB != nil {
			t.Fatal(name, errA, errB)
		}
		if (a == b) != c.same || a == "" {
			t.Errorf("%s: %v and %v have one hash: %v", name, c.a, c.b, a == b)
		}
	}
	if h, err := hash(nil); h != "" || err != nil {
		t.Errorf("nothing: %q, %v; it is not compared", h, err)
	}
}
