package analysislock

import (
	"strings"
	"testing"
)

func TestAMessageIsCutAndMadeValid(t *testing.T) {
	for name, c := range map[string]struct{ message, want string }{
		"short":           {"why", "why"},
		"none":            {"", ""},
		"of the limit":    {strings.Repeat("x", maxMessage), strings.Repeat("x", maxMessage)},
		"over the limit":  {strings.Repeat("x", maxMessage) + "y", strings.Repeat("x", maxMessage)},
		"cut in a letter": {strings.Repeat("x", maxMessage-1) + "ü", strings.Repeat("x", maxMessage-1)},
		"no text":         {"a\xffb", "ab"},
	} {
		if got := bounded(c.message); got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, len(got), len(c.want))
		}
	}
}
