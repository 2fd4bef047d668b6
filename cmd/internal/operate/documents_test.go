package operate

import (
	"strings"
	"testing"
)

func TestDocument_ID(t *testing.T) {
	ids := map[string]bool{}
	for _, tc := range []struct{ file, content, id string }{
		{"Some File.txt", "a", "some-file-txt-"},
		{"Some File.txt", "b", "some-file-txt-"},
		{"./Some File.txt", "a", "some-file-txt-"}, // no other name
		{"other/Some File.txt", "a", "some-file-txt-"},
		{"Az09:x{`", "a", "az09-x-"},
		{"ß", "a", "file-"},
	} {
		d, err := newDocument(tc.file, []byte(tc.content))
		ok(t, err)
		ids[d.ID] = true
		if !strings.HasPrefix(d.ID, tc.id) {
			t.Errorf("%s has the id %s", tc.file, d.ID)
		}
	}
	if len(ids) != 5 {
		t.Errorf("%v, want five", ids)
	}
	if d, err := newDocument("\xff", nil); err == nil {
		t.Errorf("a name that is not UTF-8: %+v", d)
	}
}
