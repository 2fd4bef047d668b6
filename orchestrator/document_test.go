package orchestrator_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"taskguard/orchestrator"
)

func builtin(t *testing.T) orchestrator.Analyzer {
	t.Helper()
	a := newAnalyzer(t, "builtin:document", orchestrator.Options{})
	return a
}

func TestBuiltinDescribesText(t *testing.T) {
	input := `{"name":"notes.MD","text":"Zebra apple, zebra\napple über-naïve it is\nlast"}`
	got := result(t, builtin(t), orchestrator.Job{Input: json.RawMessage(input)})
	word := func(w string, n int64) any { return map[string]any{"word": w, "count": n} }
	equal(t, got, map[string]any{
		"bytes":      int64(48),
		"sha256":     "2e46e98eff01d68099725955a76014cd9fde8c7b969296fbd7f3c3a18fff0e4d",
		"media_type": "text/markdown; charset=utf-8",
		"lines":      int64(3),
		"words":      int64(8),
		"characters": int64(46),
		"top_words":  []any{word("apple", 2), word("zebra", 2), word("last", 1), word("naïve", 1), word("über", 1)},
	})
}

func TestBuiltinDescribesBytes(t *testing.T) {
	png := "\x89PNG\r\n\x1a\nrest"
	input, _ := json.Marshal(map[string]string{"name": "a.txt", "base64": base64.StdEncoding.EncodeToString([]byte(png))})
	equal(t, result(t, builtin(t), orchestrator.Job{Input: input}), map[string]any{
		"bytes":      int64(12),
		"sha256":     "f02a830cf03a1cf756c0461481db682bc9254a5a399f847494d33850c3ff7156",
		"media_type": "image/png",
	})
}

func TestBuiltinNamesMediaTypesTheSameOnAllMachines(t *testing.T) {
	for _, c := range []struct{ name, content, want string }{
		{"a.txt", "hello", "text/plain; charset=utf-8"},
		{"", "", "text/plain; charset=utf-8"},
		{"a.JSON", `{"a":1}`, "application/json"},
		{"a.csv", "a,b", "text/csv; charset=utf-8"},
		{"a.png", "hello", "text/plain; charset=utf-8"},
		{"a.md", "<html>", "text/html; charset=utf-8"},
		{"a.md", "latin \xe9", "text/plain"},
		{"a.md", "\xff\xfeh\x00i\x00", "text/plain; charset=utf-16le"},
		{"a.md", "%PDF-1.7", "application/pdf"},
	} {
		input, _ := json.Marshal(map[string]any{"name": c.name, "base64": []byte(c.content)})
		got, err := orchestrator.Run(t.Context(), builtin(t), orchestrator.Job{Input: input})
		if err != nil {
			t.Errorf("%q %q: %v", c.name, c.content, err)
			continue
		}
		m := got.(map[string]any)
		isText := strings.HasPrefix(c.want, "text/") && utf8.ValidString(c.content) || c.want == "application/json"
		if _, counted := m["lines"]; m["media_type"] != c.want || counted != isText {
			t.Errorf("%q %q: got %v, want %v, and counts: %t", c.name, c.content, m, c.want, isText)
		}
	}
}

func TestBuiltinShowsTenWordsOfFourTo64Letters(t *testing.T) {
	text := "abc abcd abcde bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj kkkk"
	input, _ := json.Marshal(map[string]string{"text": text})
	got := result(t, builtin(t), orchestrator.Job{Input: input})
	var words []string
	for _, w := range got.(map[string]any)["top_words"].([]any) {
		words = append(words, w.(map[string]any)["word"].(string))
	}
	equal(t, words, strings.Fields("abcd abcde bbbb cccc dddd eeee ffff gggg hhhh iiii"))
	text = strings.Repeat("a", 65) + " " + strings.Repeat("Ä", 64) + " abc"
	input, _ = json.Marshal(map[string]string{"text": text})
	got = result(t, builtin(t), orchestrator.Job{Input: input})
	equal(t, got.(map[string]any)["top_words"], any([]any{
		map[string]any{"word": strings.Repeat("ä", 64), "count": int64(1)},
	}))
}

func TestBuiltinRefusesBadInputPermanently(t *testing.T) {
	for input, want := range map[string]string{
		``:                          "not an object",
		`null`:                      "not an object",
		`"text"`:                    "not an object",
		`[]`:                        "not an object",
		`{"text":`:                  "not JSON",
		`{}`:                        "neither text nor base64",
		`{"text":null}`:             "neither text nor base64",
		`{"text":"","base64":""}`:   "both text and base64",
		`{"text":7}`:                "text is not a string",
		`{"name":[],"text":"a"}`:    "name is not a string",
		`{"base64":"a"}`:            "base64 is broken",
		`{"base64":"_-8="}`:         "base64 is broken",
		`{"base64":"AA==trailing"}`: "base64 is broken",
	} {
		_, err := orchestrator.Run(t.Context(), builtin(t), orchestrator.Job{Input: json.RawMessage(input)})
		wantPermanent(t, err, orchestrator.CodeInvalidInput, want)
	}
}

func TestBuiltinDoesNotStartAfterTheEndOfItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := builtin(t).Analyze(ctx, orchestrator.Job{Input: json.RawMessage(`{"text":"a"}`)}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

// interrupted is a Reporter that ends a run after a number of reports.
type interrupted struct {
	recorder
	left       int
	stop       context.CancelFunc
	checkpoint json.RawMessage // the newest
	messages   []string
	progress   float64 // the last
	resumable  bool    // the last report has a checkpoint
}

func (i *interrupted) Report(r orchestrator.Report) {
	i.progress, i.resumable = *r.Progress, r.Checkpoint != nil
	if i.messages = append(i.messages, *r.Message); r.Checkpoint != nil {
		i.checkpoint, _ = json.Marshal(r.Checkpoint)
	}
	if i.left--; i.left == 0 {
		i.stop()
	}
}

// analyzeUntil runs builtin:document from a checkpoint, until it has reported n times.
func analyzeUntil(t *testing.T, text string, from json.RawMessage, n int) (result any, reports *interrupted, err error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reports = &interrupted{left: n, stop: stop, checkpoint: from}
	input, _ := json.Marshal(map[string]string{"text": text})
	result, err = orchestrator.Run(ctx, builtin(t), orchestrator.Job{Input: input, Resume: from, Reporter: reports})
	return result, reports, err
}

const noSum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // SHA-256 of nothing

func TestBuiltinContinuesFromACheckpointWithTheSameResult(t *testing.T) {
	long := strings.Repeat("Zebra ÄPFEL, über-naïve zebra\r\n\nx", 1000) + "äpfel" // no newline at the end
	for _, text := range []string{long, long + "\n", "one long line\nlast", strings.Repeat("\n", 100), "no part", ""} {
		want, all, err := analyzeUntil(t, text, nil, 0)
		lines := strings.Count(text, "\n")
		if text != "" && !strings.HasSuffix(text, "\n") {
			lines++
		}
		if counts := want.(map[string]any); err != nil || counts["lines"] != int64(lines) || counts["words"] != int64(len(strings.Fields(text))) {
			t.Fatalf("%v, %v; want %d lines", counts, err, lines)
		}
		for n := 1; n < len(all.messages); n++ { // interrupted after each part
			_, before, err := analyzeUntil(t, text, nil, n)
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("part %d: %v", n, err)
			}
			got, after, err := analyzeUntil(t, text, before.checkpoint, 0)
			if err != nil || len(after.messages) != len(all.messages)-n+1 {
				t.Errorf("part %d: %v; %d reports after %d of %d", n, err, len(after.messages), n, len(all.messages))
			}
			if first := before.messages[n-1]; n > 1 && !strings.HasPrefix(after.messages[0], first+", continued from line ") {
				t.Errorf("part %d: %q after %q", n, after.messages[0], first)
			}
			equal(t, got, want)
		}
		if _, again, err := analyzeUntil(t, text, nil, 0); err != nil || len(text) > 1000 && (len(again.messages) < 10 || again.checkpoint == nil) {
			t.Errorf("%v; %d reports of %d bytes", err, len(again.messages), len(text))
		}
		for _, other := range []string{`{"bytes":1,"sha256":"","seen":{}}`, `{"bytes":-1,"seen":{}}`, `{"sha256":"` + noSum + `"}`} {
			got, _, err := analyzeUntil(t, text, json.RawMessage(other), 0)
			if err != nil {
				t.Error(err)
			}
			equal(t, got, want)
		}
		if text != "" && all.progress != 1 || all.resumable {
			t.Errorf("the progress ends at %v, with a checkpoint: %t; want 1 and none", all.progress, all.resumable)
		}
	}
	_, before, _ := analyzeUntil(t, long, nil, 5)
	want, _, _ := analyzeUntil(t, "X"+long, nil, 0) // the input has changed since the checkpoint
	got, _, _ := analyzeUntil(t, "X"+long, before.checkpoint, 0)
	equal(t, got, want)
}

func TestBuiltinReportsNoCheckpointOfTooManyWords(t *testing.T) {
	var text strings.Builder
	for i := range 100_000 {
		text.WriteString(strings.Repeat(string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676%26))+string(rune('a'+i/17576)), 2) + "\n")
	}
	_, all, err := analyzeUntil(t, text.String(), nil, 0)
	if err != nil || len(all.messages) < 10 || all.checkpoint != nil || len(all.invalid) > 0 {
		t.Errorf("%v; %d reports, a checkpoint of %d bytes, invalid: %q", err, len(all.messages), len(all.checkpoint), all.invalid)
	}
}
