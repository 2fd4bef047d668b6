package local

import "testing"

func TestExportsAreForAShell(t *testing.T) {
	got := exports(map[string]string{"A": "projects/p/q:1", "B": "it's $x"})
	if want := "export A=projects/p/q:1\n" + `export B='it'\''s $x'` + "\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
