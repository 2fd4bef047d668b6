package operate

import (
	"strings"
	"testing"
)

func TestAnIDIsMadeFromNameAndContent(t *testing.T) {
	ids := map[string]bool{}
	for _, file := range [][2]string{{"Some File.txt", "a"}, {"Some File.txt", "b"}, {"Other File.txt", "a"}, {"ß", "a"}, {"./Some File.txt", "a"}} {
		d, err := newDocument(file[0], []byte(file[1]))
		if err != nil {
			t.Fatal(err)
		}
		ids[d.ID] = true
		if strings.Contains(file[0], "Some File") && !strings.HasPrefix(d.ID, "some-file-txt-") {
			t.Errorf("%s has the id %s", file[0], d.ID)
		}
	}
	if len(ids) != 4 { // ./ is no other name
		t.Errorf("%v, want four", ids)
	}
}
