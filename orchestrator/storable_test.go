package orchestrator_test

import (
	"encoding/json"
	"math"
	"runtime"
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

func TestStorableKeepsWhatADocumentHolds(t *testing.T) {
	type person struct {
		Name string    `json:"name"`
		Born time.Time `json:"born"`
		Tags []string  `json:"tags"`
		Raw  []byte    `json:"raw"`
		skip int
	}
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	for name, c := range map[string]struct {
		in   any
		want any
	}{
		"nil":                  {nil, nil},
		"a nil raw message":    {json.RawMessage(nil), nil},
		"a bool":               {true, true},
		"a string":             {"naïve <b> \u2028", "naïve <b> \u2028"},
		"an int":               {7, int64(7)},
		"an integral number":   {raw("1"), int64(1)},
		"minus zero":           {raw("-0"), int64(0)},
		"the largest int64":    {raw("9223372036854775807"), int64(math.MaxInt64)},
		"the smallest int64":   {raw("-9223372036854775808"), int64(math.MinInt64)},
		"a float64's digits":   {raw("123456789012345680000"), 123456789012345680000.0},
		"a fraction of zero":   {raw("1.0"), 1.0},
		"an exponent":          {raw("1e3"), 1000.0},
		"a whole float64":      {2.0, int64(2)},
		"a float64":            {0.1, 0.1},
		"zeros at the end":     {raw("-1.500"), -1.5},
		"zeros at the start":   {raw("0.00015e4"), 1.5},
		"a shifted point":      {raw("15E-1"), 1.5},
		"a large exponent":     {raw("123.456e+300"), 1.23456e302},
		"minus zero, float64":  {raw("-0.0"), math.Copysign(0, -1)},
		"zero with any power":  {raw("0e99999999999999999999"), 0.0},
		"the least float64":    {raw("5e-324"), 5e-324},
		"17 digits":            {raw("0.30000000000000004"), 0.30000000000000004},
		"the largest float64":  {math.MaxFloat64, math.MaxFloat64},
		"empty containers":     {raw(`{"a":{},"b":[]}`), map[string]any{"a": map[string]any{}, "b": []any{}}},
		"white space around":   {raw(" \n[1] \n"), []any{int64(1)}},
		"maps in arrays":       {raw(`[{"a":[1]},{}]`), []any{map[string]any{"a": []any{int64(1)}}, map[string]any{}}},
		"a name twice":         {raw(`{"a":1,"a":2}`), map[string]any{"a": int64(2)}},
		"half a reserved name": {raw(`{"__x":1,"x__":1,"___":1}`), map[string]any{"__x": int64(1), "x__": int64(1), "___": int64(1)}},
		"a surrogate pair":     {raw(`"\ud83d\ude00"`), "😀"},
		"U+FFFD":               {"\uFFFD", "\uFFFD"},
		"a struct": {
			person{Name: "Ada", Born: time.Date(1815, 12, 10, 0, 0, 0, 0, time.UTC), Raw: []byte("hi"), skip: 1},
			map[string]any{"name": "Ada", "born": "1815-12-10T00:00:00Z", "tags": nil, "raw": "aGk="},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := orchestrator.Storable(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestStorableAcceptsEachLimit(t *testing.T) {
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
		t.Run(name, func(t *testing.T) {
			if _, err := orchestrator.Storable(json.RawMessage(in)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStorableRefusesNamingThePath(t *testing.T) {
	const invalid, large = orchestrator.CodeResultInvalid, orchestrator.CodeResultTooLarge
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	cyclic := map[string]any{}
	cyclic["self"] = cyclic
	for name, c := range map[string]struct {
		in      any
		code    string
		message string // a prefix
	}{
		"an array in an array":      {raw(`{"items":[1,2,3,[4]]}`), invalid, "result.items[3] is an array directly in an array"},
		"arrays at the top":         {raw(`[[[1]]]`), invalid, "result[0] is an array directly in an array"},
		"arrays in a map":           {raw(`{"items":[{},{},{},{"x":[[1]]}]}`), invalid, "result.items[3].x[0] is an array directly in an array"},
		"a reserved name":           {raw(`{"a":[{"__x__":1}]}`), invalid, "result.a[0].__x__ has a reserved name"},
		"underscores alone":         {raw(`{"____":1}`), invalid, "result.____ has a reserved name"},
		"an empty name":             {raw(`{"a":{"":1}}`), invalid, `result.a[""] has an empty name`},
		"a long name":               {raw(`{"` + strings.Repeat("x", 1494) + `":1}`), invalid, `result["` + strings.Repeat("x", 64) + `…"] has a name of 1501 bytes`},
		"long names together":       {raw(`{"` + strings.Repeat("x", 750) + `":[{"` + strings.Repeat("y", 743) + `":1}]}`), invalid, `result["` + strings.Repeat("x", 64) + `…"][0]["` + strings.Repeat("y", 64) + `…"] has a name of 1501 bytes`},
		"21 maps":                   {raw(nest(21, "1")), invalid, "result" + strings.Repeat(".a", 20) + " is deeper than 20 levels"},
		"an empty array at 21":      {raw(nest(20, "[]")), invalid, "result" + strings.Repeat(".a", 20) + " is deeper than 20 levels"},
		"very many maps":            {raw(nest(200_000, "1")), invalid, "result" + strings.Repeat(".a", 20) + " is deeper than 20 levels"},
		"an integer that changes":   {raw(`{"n":[9223372036854775809]}`), invalid, "result.n[0] is an integer beyond int64 that float64 would change"},
		"a large uint64":            {map[string]any{"n": uint64(math.MaxUint64)}, invalid, "result.n is an integer beyond int64 that float64 would change"},
		"a decimal that changes":    {raw(`{"a":[1234567890123456.78]}`), invalid, "result.a[0] is a number with more digits than float64 holds: write it as a string"},
		"a long fraction":           {raw("0.1000000000000000055511151231257827"), invalid, "result is a number with more digits"},
		"a decimal's neighbour":     {raw("0.30000000000000005"), invalid, "result is a number with more digits"},
		"a whole decimal":           {raw("12345678901234567890.0"), invalid, "result is a number with more digits"},
		"a tiny number":             {raw("1e-400"), invalid, "result is a number with more digits"},
		"a tiny power":              {raw("1e-99999999999999999999"), invalid, "result is a number with more digits"},
		"a decimal of another type": {map[string]any{"n": json.Number("1234567890123456.78")}, invalid, "result.n is a number with more digits"},
		"a number beyond float64":   {raw(`{"a b":1e309}`), invalid, `result["a b"] is a number beyond float64`},
		"an integer beyond float64": {raw("1" + strings.Repeat("0", 400)), invalid, "result is a number beyond float64"},
		"NaN":                       {map[string]any{"n": math.NaN()}, invalid, "result is not JSON: "},
		"a channel":                 {make(chan int), invalid, "result is not JSON: "},
		"a cycle":                   {cyclic, invalid, "result is not JSON: "},
		"no JSON":                   {raw(`{"a":[1,}`), invalid, "result.a[1] is not JSON: "},
		"nothing":                   {raw(""), invalid, "result is not JSON: "},
		"JSON cut short":            {raw(`{"a":[1`), invalid, "result.a is not JSON: "},
		"two values":                {raw("1 2"), invalid, "result is more than one JSON value"},
		"a large string":            {strings.Repeat("x", orchestrator.MaxResultBytes), large, "result does not fit"},
		"a large string in a map":   {map[string]any{"b": []string{"", strings.Repeat("x", 1<<20)}}, large, "result.b[1] does not fit"},
		"a name and a string":       {raw(`{"abc":"` + strings.Repeat("x", orchestrator.MaxResultBytes-4) + `"}`), large, "result.abc does not fit"},
		"a name too many":           {raw(`{"a":"` + strings.Repeat("x", orchestrator.MaxResultBytes-3) + `","b":1}`), large, "result.b does not fit"},
		"a name of 64 bytes":        {raw(`{"` + strings.Repeat("-", 64) + `":{"":1}}`), invalid, `result["` + strings.Repeat("-", 64) + `"][""] has an empty name`},
		"maps in arrays at 21":      {raw(strings.Repeat(`{"a":[`, 10) + `{}` + strings.Repeat("]}", 10)), invalid, "result" + strings.Repeat(".a[0]", 10) + " is deeper than 20 levels"},
		"too many nulls":            {make([]any, orchestrator.MaxResultBytes+1), large, "result[" + strconv.Itoa(orchestrator.MaxResultBytes) + "] does not fit"},
		"too many integers":         {make([]int, orchestrator.MaxResultBytes/8+1), large, "result[" + strconv.Itoa(orchestrator.MaxResultBytes/8) + "] does not fit"},
		"too many empty maps":       {make([]struct{}, orchestrator.MaxResultBytes+1), large, "result[" + strconv.Itoa(orchestrator.MaxResultBytes) + "] does not fit"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := orchestrator.Storable(c.in)
			if got := permanent(t, err); got.Code != c.code || !strings.HasPrefix(got.Message, c.message) {
				t.Errorf("got %s: %q\nwant %s: %q…", got.Code, got.Message, c.code, c.message)
			}
		})
	}
}

func TestStorableInputNamesTheInput(t *testing.T) {
	long := strings.Repeat("x", orchestrator.MaxResultBytes)
	for in, want := range map[string]string{
		`{"n":[[1]]}`:          "input.n[0] is an array directly in an array",
		`{"n":1e309}`:          "input.n is a number beyond float64",
		`[1`:                   "input is not JSON: ",
		`{"n":"` + long + `"}`: "input.n does not fit: the limit is 1040384 bytes; put it in Cloud Storage and submit its name",
		`{"` + strings.Repeat("x", 1495) + `":1}`: `input["` + strings.Repeat("x", 64) + `…"] has a name of 1501 bytes`,
	} {
		_, err := orchestrator.StorableInput(json.RawMessage(in))
		if got := permanent(t, err); got.Code != orchestrator.CodeInvalidInput || !strings.HasPrefix(got.Message, want) {
			t.Errorf("%.30s: %s: %q, want %q", in, got.Code, got.Message, want)
		}
	}
	if got, err := orchestrator.StorableInput(map[string]int{"n": 1}); err != nil || !cmp.Equal(got, any(map[string]any{"n": int64(1)})) {
		t.Errorf("%v, %v", got, err)
	}
}

// Without a check before it, this took 140 MiB for each run.
func TestALargeResultIsRefusedBeforeItIsDecoded(t *testing.T) {
	text := json.RawMessage("[" + strings.Repeat("{},", 2<<20) + "{}]")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := orchestrator.Storable(text)
	runtime.ReadMemStats(&after)
	wantPermanent(t, err, orchestrator.CodeResultTooLarge, "result[1040384] does not fit")
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
		t.Errorf("%d bytes were allocated for %d of JSON", grown, len(text))
	}
}
