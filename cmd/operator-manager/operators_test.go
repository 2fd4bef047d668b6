package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnInvalidFileOfOperatorsShowsAnExample(t *testing.T) {
	for name, content := range map[string]string{
		"not JSON": "kana", "empty": "", "no operators": `{"operators":[]}`, "of another kind": `{"operators":["kana"]}`,
		"twice": `{"operators":[{"id":"kana"},{"id":"kana"}]}`, "no id": `{"operators":[{"name":"kana"}]}`,
		"half a time": `{"operators":[{"id":"kana"}],"operatorTimeout":1.5}`, "missing": "",
	} {
		x := open(t, newState(t), "1")
		x.flags[1] = filepath.Join(t.TempDir(), "o.json")
		if name != "missing" {
			check(t, os.WriteFile(x.flags[1], []byte(content), 0o600))
		}
		got := x.run("available")
		if got.code != 2 || got.out != "" || strings.Count(got.err, "エラー") != 1 || !strings.Contains(got.err, x.flags[1]) || !strings.Contains(got.err, operatorsExample) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestTheFileOfOperatorsIsFoundByFlagEnvironmentOrFolder(t *testing.T) {
	x := open(t, newState(t), "1")
	x.flags = x.flags[2:]
	x.prints("かなを割り当てました", "assign", "kana") // operators.json is in this folder
	x.env["OPERATORS_FILE"] = filepath.Join(t.TempDir(), "o.json")
	check(t, os.WriteFile(x.env["OPERATORS_FILE"], []byte(operatorsExample), 0o600))
	x.prints("利用可能なオペレータ: tsukuyomi", "available")
	x.prints("利用可能なオペレータ: tsukuyomi, angie, alma, akane, dia, kana", "available", "--operators", "operators.json")
}

func TestTheTimeoutOfTheFileCounts(t *testing.T) { // O6
	o, timeout, err := readOperators("operators.json")
	if err != nil || len(o) != 6 || timeout.Milliseconds() != 14_400_000 {
		t.Errorf("the sample: %v, %v, %v", o, timeout, err)
	}
	path := filepath.Join(t.TempDir(), "o.json")
	check(t, os.WriteFile(path, []byte(`{"operators":[{"id":"kana"}],"operatorTimeout":1}`), 0o600))
	state := newState(t)
	one, two := open(t, state, "1st"), open(t, state, "2nd")
	one.flags[1], two.flags[1] = path, path
	one.prints("kanaを割り当てました", "assign")
	if err := two.program("assign").Run(); err != nil { // to start it takes a millisecond
		t.Error(err)
	}
}
