package console

import (
	"testing"
	"time"
)

func TestSpreadOf_EachPercentileIsATimeThatOccurred(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	for name, tc := range map[string]struct {
		times []time.Duration
		want  spread
	}{
		"none":               {nil, spread{}},
		"one":                {[]time.Duration{7}, spread{7, 7, 7}},
		"two":                {[]time.Duration{9, 1}, spread{1, 9, 9}},
		"three":              {[]time.Duration{5, 9, 1}, spread{5, 9, 9}},
		"equal ones":         {[]time.Duration{4, 4, 4, 8}, spread{4, 8, 8}},
		"twenty":             {hundred[:20], spread{90, 99, 100}},
		"a hundred":          {hundred, spread{50, 95, 100}},
		"a hundred and some": {append([]time.Duration{1000}, hundred...), spread{51, 96, 1000}},
	} {
		if got := spreadOf(tc.times); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("the times were sorted in place")
	}
}
