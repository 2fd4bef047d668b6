package operate

import (
	"strings"
	"testing"
)

func TestAnIDIsMadeFromNameAndContent(t *testing.T) {
	ids := map[string]bool{}
	for _, file := range [][2]string{{"Some File.txt", "a"}, {"Some File.txt", "b"}, {"Other File.txt", "a"}, {"other/Some File.txt", "a"}, {"ß", "a"}, {"./Some File.txt", "a"}} {
		d, err := newDocument(file[0], []byte(file[1]))
		if err != nil {
			t.Fatal(err)
		}
		ids[d.ID] = true
		if strings.Contains(file[0], "Some File") && !strings.HasPrefix(d.ID, "some-file-txt-") {
			t.Errorf("%s has the id %s", file[0], d.ID)
		}
	}
	for file, want := range map[string]string{"Az09:x{`/.": "az09-x-", "ß": "file-"} {
		if d, err := newDocument(strings.TrimSuffix(file, "/."), nil); err != nil || !strings.HasPrefix(d.ID, want) {
			t.Errorf("%s has the id %s, %v", file, d.ID, err)
		}
	}
	if d, err := newDocument("\xff", nil); err == nil {
		t.Errorf("a name that is not UTF-8: %+v", d)
	}
	if len(ids) != 5 { // ./ is no other name
		t.Errorf("%v, want five", ids)
	}
}
