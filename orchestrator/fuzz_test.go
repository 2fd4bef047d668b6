package orchestrator_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"taskguard/orchestrator"
)

func FuzzStorableJSON(f *testing.F) {
	for _, seed := range []string{
		`{"items":[1,2.5,-0,1e3,"x",null,true,{"__x__":1}]}`, `[[1]]`, nest(22, "1"), "\"\xff\\ud800\\ufffd\"",
		"9223372036854775808", "1e400", `{"":{"a.b":[]}}`, `{"a":1}{`, "[1,}", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := orchestrator.Storable(json.RawMessage(text))
		var refused *orchestrator.PermanentError
		names := errors.As(err, &refused) && strings.HasPrefix(refused.Message, "result")
		if right := names && v == nil; err != nil && !right {
			t.Errorf("got %v, %v; want a *PermanentError that names the path", v, err)
		}
		if _, again := orchestrator.Storable(v); again != nil {
			t.Errorf("not storable a second time: %v", again)
		}
	})
}
