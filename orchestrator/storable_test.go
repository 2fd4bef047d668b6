package orchestrator_test

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/orchestrator"
)

// nest puts leaf into n maps.
func nest(n int, leaf string) string {
	return strings.Repeat(`{"a":`, n) + leaf + strings.Repeat("}", n)
}

func TestStorable_Keeps(t *testing.T) {
	type person struct {
		Name string    `json:"name"`
		Born time.Time `json:"born"`
		Tags []string  `json:"tags"`
		Raw  []byte    `json:"raw"`
		skip int
	}
	born := time.Date(1815, 12, 10, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct{ in, want any }{
		"nil":               {nil, nil},
		"a nil raw message": {json.RawMessage(nil), nil},
		"an int":            {7, int64(7)},
		"a whole float64":   {2.0, int64(2)},
		"the largest":       {math.MaxFloat64, math.MaxFloat64},
		"a string":          {"naïve <b> \u2028\uFFFD", "naïve <b> \u2028\uFFFD"},
		"a struct": {
			person{Name: "Ada", Born: born, Raw: []byte("hi"), skip: 1},
			map[string]any{"name": "Ada", "born": "1815-12-10T00:00:00Z", "tags": nil, "raw": "aGk="},
		},
	} {
		got, err := orchestrator.Storable(c.in)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got\n%s", name, err, diff)
		}
	}
	for text, want := range map[string]any{
		"true":                   true,
		"-0":                     int64(0),
		"9223372036854775807":    int64(math.MaxInt64),
		"-9223372036854775808":   int64(math.MinInt64),
		"123456789012345680000":  123456789012345680000.0,
		"1.0":                    1.0,
		"1e3":                    1000.0,
		"-1.500":                 -1.5,
		"0.00015e4":              1.5,
		"15E-1":                  1.5,
		"123.456e+300":           1.23456e302,
		"-0.0":                   math.Copysign(0, -1),
		"0e99999999999999999999": 0.0,
		"5e-324":                 5e-324,
		"0.30000000000000004":    0.30000000000000004,
		`"\ud83d\ude00"`:         "😀",
		"\n[1]\n":                []any{int64(1)},
		`{"a":1,"a":2}`:          map[string]any{"a": int64(2)},
		`{"a":{},"b":[]}`:        map[string]any{"a": map[string]any{}, "b": []any{}},
		`[{"a":[1]}]`:            []any{map[string]any{"a": []any{int64(1)}}},
		`{"__x":1,"x__":1}`:      map[string]any{"__x": int64(1), "x__": int64(1)},
		`{"___":1}`:              map[string]any{"___": int64(1)},
	} {
		got, err := orchestrator.Storable(json.RawMessage(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got\n%s", text, err, diff)
		}
	}
}

func TestStorable_Limits(t *testing.T) {
	for name, in := range map[string]string{
		"20 maps around a scalar": nest(20, `1`),
		"20 maps, one empty":      nest(19, `{}`),
		"a replaced character":    `{"\ufffd":1}`,
		"20 maps and arrays":      strings.Repeat(`{"a":[`, 10) + "1" + strings.Repeat("]}", 10),
		"a path of 1500 bytes":    `{"` + strings.Repeat("x", 1500-len("result.")) + `":1}`,
		"the same in an array":    `[{"` + strings.Repeat("x", 1500-len("result.")) + `":1}]`,
		"the largest string":      `"` + strings.Repeat("x", orchestrator.MaxResultBytes-1) + `"`,
		"the most integers":       "[1" + strings.Repeat(",1", orchestrator.MaxResultBytes/8-1) + "]",
		"a name and a string":     `{"abc":"` + strings.Repeat("x", orchestrator.MaxResultBytes-5) + `"}`,
	} {
		if _, err := orchestrator.Storable(json.RawMessage(in)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The message begins with the path.
func TestStorable_Refuses(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	cyclic := map[string]any{}
	cyclic["self"] = cyclic
	x64, y64 := strings.Repeat("x", 64), strings.Repeat("y", 64)
	x750, y743 := strings.Repeat("x", 750), strings.Repeat("y", 743)
	large, n := strings.Repeat("x", orchestrator.MaxResultBytes-4), orchestrator.MaxResultBytes
	a20 := "result" + strings.Repeat(".a", 20)
	for name, c := range map[string]struct {
		in      any
		message string // its beginning
	}{
		"arrays at the top":  {raw(`[[[1]]]`), "result[0] is an array directly"},
		"arrays in a map":    {raw(`{"b":[0,{"x":[[1]]}]}`), "result.b[1].x[0] is an array directly"},
		"a reserved name":    {raw(`{"a":[{"__x__":1}]}`), "result.a[0].__x__ has a reserved name"},
		"underscores alone":  {raw(`{"____":1}`), "result.____ has a reserved name"},
		"an empty name":      {raw(`{"a":{"":1}}`), `result.a[""] has an empty name`},
		"a name of 64 bytes": {raw(`{"` + x64 + `-":{"":1}}`), `result["` + x64 + `…"][""] has an empty name`},
		"a long name": {
			raw(`{"` + strings.Repeat("x", 1494) + `":1}`), `result["` + x64 + `…"] has a name of 1501 bytes`,
		},
		"long names together": {
			raw(`{"` + x750 + `":[{"` + y743 + `":1}]}`),
			`result["` + x64 + `…"][0]["` + y64 + `…"] has a name of 1501`,
		},
		"21 maps":              {raw(nest(21, "1")), a20 + " is deeper than 20 levels"},
		"an empty array at 21": {raw(nest(20, "[]")), a20 + " is deeper than 20 levels"},
		"very many maps":       {raw(nest(200_000, "1")), a20 + " is deeper than 20 levels"},
		"maps in arrays at 21": {
			raw(strings.Repeat(`{"a":[`, 10) + `{}` + strings.Repeat("]}", 10)),
			"result" + strings.Repeat(".a[0]", 10) + " is deeper",
		},
		"an integer that changes":   {raw(`{"n":[9223372036854775809]}`), "result.n[0] is an integer beyond int64"},
		"a large uint64":            {map[string]uint64{"n": math.MaxUint64}, "result.n is an integer"},
		"a decimal that changes":    {raw(`{"a":[1234567890123456.78]}`), "result.a[0] is a number with more"},
		"a long fraction":           {raw("0.1000000000000000055511151231257827"), "result is a number with more"},
		"a decimal's neighbour":     {raw("0.30000000000000005"), "result is a number with more"},
		"a whole decimal":           {raw("12345678901234567890.0"), "result is a number with more"},
		"a tiny number":             {raw("1e-400"), "result is a number with more"},
		"a tiny power":              {raw("1e-99999999999999999999"), "result is a number with more"},
		"a number beyond float64":   {raw(`{"a b":1e309}`), `result["a b"] is a number beyond float64`},
		"an integer beyond float64": {raw("1" + strings.Repeat("0", 400)), "result is a number beyond float64"},
		"NaN":                       {map[string]any{"n": math.NaN()}, "result is not JSON: "},
		"a cycle":                   {cyclic, "result is not JSON: "},
		"no JSON":                   {raw(`{"a":[1,}`), "result.a[1] is not JSON: "},
		"nothing":                   {raw(""), "result is not JSON: "},
		"JSON cut short":            {raw(`{"a":[1`), "result.a is not JSON: "},
		"two values":                {raw("1 2"), "result is more than one JSON value"},
		"a large string":            {large + "1234", "result does not fit"},
		"a large string in a map":   {map[string]any{"b": []string{"", large + "1"}}, "result.b[1] does not fit"},
		"a name and a string":       {raw(`{"abc":"` + large + `"}`), "result.abc does not fit"},
		"a name too many":           {raw(`{"a":"` + large + `1","b":1}`), "result.b does not fit"},
		"too many nulls":            {make([]any, n+1), "result[" + strconv.Itoa(n) + "] does not fit"},
		"too many integers":         {make([]int, n/8+1), "result[" + strconv.Itoa(n/8) + "] does not fit"},
		"too many empty maps":       {make([]struct{}, n+1), "result[" + strconv.Itoa(n) + "] does not fit"},
	} {
		code := orchestrator.CodeResultInvalid
		if strings.HasSuffix(c.message, "does not fit") {
			code = orchestrator.CodeResultTooLarge
		}
		_, err := orchestrator.Storable(c.in)
		if got := permanent(t, err); got.Code != code || !strings.HasPrefix(got.Message, c.message) {
			t.Errorf("%s: got %s: %q\nwant %s: %q…", name, got.Code, got.Message, code, c.message)
		}
	}
}

func TestStorableInput(t *testing.T) {
	long := strings.Repeat("x", orchestrator.MaxResultBytes)
	for in, want := range map[string]string{
		`{"n":[[1]]}`:          "input.n[0] is an array directly in an array",
		`[1`:                   "input is not JSON: ",
		`{"n":"` + long + `"}`: "input.n does not fit: the limit is 1040384 bytes; put it in Cloud Storage",
		`{"` + strings.Repeat("x", 1495) + `":1}`: `input["` + strings.Repeat("x", 64) + `…"] has a name of 1501 bytes`,
	} {
		_, err := orchestrator.StorableInput(json.RawMessage(in))
		wantPermanent(t, err, orchestrator.CodeInvalidInput, want)
	}
	got, err := orchestrator.StorableInput(map[string]int{"n": 1})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, map[string]any{"n": int64(1)})
}

// Without a check before it is decoded, this took 140 MiB for each run.
func TestStorable_Memory(t *testing.T) {
	text := json.RawMessage("[" + strings.Repeat("{},", 2<<20) + "{}]")
	grown := allocated(func() {
		_, err := orchestrator.Storable(text)
		wantPermanent(t, err, orchestrator.CodeResultTooLarge, "result[1040384] does not fit")
	})
	if grown > 8<<20 {
		t.Errorf("%d bytes were allocated for %d of JSON", grown, len(text))
	}
}
