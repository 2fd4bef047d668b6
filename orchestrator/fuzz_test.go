package orchestrator_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"taskguard/orchestrator"
)

// stored checks v by the documented limits, independently of Storable, and returns
// its size.
func stored(t *testing.T, v any, level, pathBytes int, inArray bool) int {
	t.Helper()
	size := 0
	switch v := v.(type) {
	case nil, bool:
		return 1
	case int64, float64:
		return 8
	case string:
		if !utf8.ValidString(v) {
			t.Errorf("invalid UTF-8: %q", v)
		}
		return len(v) + 1
	case []any:
		if inArray {
			t.Error("an array in an array")
		}
		for _, e := range v {
			size += stored(t, e, level+1, pathBytes, true)
		}
	case map[string]any:
		for name, e := range v {
			if name == "" || len(name) > 3 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") || !utf8.ValidString(name) {
				t.Errorf("name %q", name)
			}
			if pathBytes+1+len(name) > 1500 {
				t.Errorf("a path of %d bytes", pathBytes+1+len(name))
			}
			size += len(name) + 1 + stored(t, e, level+1, pathBytes+1+len(name), false)
		}
	default:
		t.Errorf("a %T", v)
	}
	if level > 20 {
		t.Errorf("a container at level %d", level)
	}
	return size
}

func checkStorable(t *testing.T, r orchestrator.Result) {
	t.Helper()
	v, err := orchestrator.Storable(r)
	if err != nil {
		var refused *orchestrator.PermanentError
		if !errors.As(err, &refused) || !strings.HasPrefix(refused.Message, "result") || v != nil {
			t.Errorf("got %v, %v; want a *PermanentError that names the path", v, err)
		}
		return
	}
	if size := stored(t, v, 1, len("result"), false); size > orchestrator.MaxResultBytes {
		t.Errorf("a size of %d", size)
	}
	if _, err := orchestrator.Storable(v); err != nil {
		t.Errorf("not storable a second time: %v", err)
	}
}

func FuzzStorableJSON(f *testing.F) {
	for _, seed := range []string{
		`{"items":[1,2.5,-0,1e3,"x",null,true,{"__x__":1}]}`, `[[1]]`, nest(22, "1"), "\"\xff\\ud800\\ufffd\"",
		"9223372036854775808", "1e400", `{"":{"a.b":[]}}`, `{"a":1}{`, "[1,}", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) { checkStorable(t, json.RawMessage(text)) })
}
