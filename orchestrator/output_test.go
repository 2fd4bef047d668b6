//go:build linux || darwin

package orchestrator_test

import (
	"errors"
	"strings"
	"testing"

	"taskguard/orchestrator"
)

func TestOutput_Any(t *testing.T) {
	options := orchestrator.Options{AnyOutput: true}
	for text, want := range map[string]any{
		"{\"n\":1.5}\n":        map[string]any{"n": 1.5},
		"\ufeff{\"n\":1}\n":    map[string]any{"n": int64(1)},
		"12\n":                 int64(12),
		"":                     nil,
		"\ufeff":               nil,
		"\ufeffé\n":            "\ufeffé",
		"é\r\n":                "é",
		"a\r":                  "a\r",
		"a\n\n":                "a\n",
		" {\"s3\":NaN}\n":      " {\"s3\":NaN}",
		`{"n":1} {"n":2}`:      `{"n":1} {"n":2}`,
		"[1234567890123456.8]": []any{1234567890123456.8},
		// A value computed in float64 is printed with up to 17 digits by some languages.
		"[1234567890123456.78,0.10000000000000001]": []any{1234567890123456.8, 0.1},
	} {
		got, err := orchestrator.ResultOf(text, options, orchestrator.Job{})
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		equal(t, got, want)
	}
	for _, text := range []string{"\xff\xfe\x00", "{\"n\":\"\xff\"}", "12345678901234567891"} {
		_, err := orchestrator.ResultOf(text, options, orchestrator.Job{})
		wantPermanent(t, err, orchestrator.CodeResultInvalid, "result")
	}
}

func TestOutput_JSON(t *testing.T) {
	for text, stopped := range map[string]string{
		"":                "it is empty",
		"\ufeff":          "it is empty",
		" \n":             "after 2 of 2 bytes",
		"\ufeff{}x":       "after 3 of 3 bytes",
		"{\"a\":\"\xc3":   "after 7 of 7 bytes",
		`{"a": 1,`:        "after 8 of 8 bytes",
		`{"n":1} {"n":2}`: "after 9 of 15 bytes",
		"s3cret":          "after 1 of 6 bytes",
		"[1, s3cret]":     "after 5 of 11 bytes",
	} {
		_, err := orchestrator.ResultOf(text, orchestrator.Options{}, orchestrator.Job{})
		wantInvalidOutput(t, err, stopped)
	}
	got, err := orchestrator.ResultOf(` {"n": 1} `, orchestrator.Options{}, orchestrator.Job{})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, map[string]any{"n": int64(1)})
}

// wantInvalidOutput wants a FailureError with the code and the position where parsing
// stopped, without the output itself.
func wantInvalidOutput(t *testing.T, err error, stopped string) {
	t.Helper()
	failure, ok := errors.AsType[*orchestrator.FailureError](err)
	if !ok {
		t.Fatalf("got %v, want a FailureError", err)
	}
	if failure.Code != orchestrator.CodeInvalidOutput || !strings.HasSuffix(failure.Reason, stopped) {
		t.Errorf("got %v, want %s, %s", err, orchestrator.CodeInvalidOutput, stopped)
	}
	if strings.Contains(err.Error(), "s3") || strings.ContainsAny(err.Error(), `{["'`) {
		t.Errorf("%v shows the output", err)
	}
}

// Output that is probably no result is one warning, which does not quote it.
func TestOutput_Warning(t *testing.T) {
	for warned, texts := range map[string][]string{
		"begins like JSON": {
			"loading\n{\"n\":1}\n", "loading\n{\n  \"n\": 1\n}\n", "loading\r\n  [{\"n\":1}]", "loading\n[1.5, -2]\n",
			"{\"n\":1}\ndone\n", "\uFEFF{\"n\":", "{\"progress\":1}\n{\"result\":7}\n", "[1,", " {\"page\":NaN}\n",
			"data: {\"result\":7}\n\n", "\x1e{\"n\":1}\n", // an event stream, a sequence of JSON
		},
		"a report or an error": {
			`{"error":{"code":"no_page","permanent":true}}`, ` { "error" : "no page" }`,
			`{"progress":0.5,"checkpoint":{"done":1}}`,
		},
		"empty":   {"", " \n", "\uFEFF"}, // as of a program that finds its own run's lock, and skips the work
		"rounded": {"[1234567890123456.78,0.10000000000000001]"},
		"": {
			`{"error":null,"n":1}`, `{"result":7}`, "done {\"n\":1}\n",
			"a\n12:00 [INFO] b\n", "[1234567890123456.8,0.10]",
			"as in [2]\n\n[1] a footnote\n[2] another\n",
		},
	} {
		for _, text := range texts {
			var got recorder
			job := orchestrator.Job{Reporter: &got}
			if _, err := orchestrator.ResultOf(text, orchestrator.Options{AnyOutput: true}, job); err != nil {
				t.Errorf("%q: %v", text, err)
			}
			wantWarning(t, text, got.warned, warned)
		}
	}
}

// wantWarning wants one warning with these words, or none if there are none.
func wantWarning(t *testing.T, text string, got []string, words string) {
	t.Helper()
	all := strings.Join(got, ";")
	if one := len(got) == 1; one != (words != "") || !strings.Contains(all, words) {
		t.Errorf("%q: warned %q, want %q", text, got, words)
	}
	if strings.Contains(all, "page") || strings.Contains(all, "loading") {
		t.Errorf("the warning quotes the output: %q", all)
	}
}
