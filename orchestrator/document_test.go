package orchestrator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"taskguard/orchestrator"
)

// document runs builtin:document on an input that can be encoded as JSON.
func document(ctx context.Context, t *testing.T, input any, job orchestrator.Job) (map[string]any, error) {
	t.Helper()
	job.Input, _ = json.Marshal(input)
	got, err := orchestrator.Run(ctx, newAnalyzer(t, "builtin:document", orchestrator.Options{}), job)
	fields, _ := got.(map[string]any)
	return fields, err
}

func TestDocument(t *testing.T) {
	words := func(pairs ...any) (all []any) {
		all = []any{}
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, map[string]any{"word": pairs[i], "count": int64(pairs[i+1].(int))})
		}
		return all
	}
	for content, want := range map[string]map[string]any{ // nil: not in the result
		"Zebra apple, zebra\napple über-naïve it is\nlast": {
			"bytes": int64(48), "sha256": "2e46e98eff01d68099725955a76014cd9fde8c7b969296fbd7f3c3a18fff0e4d",
			"media_type": "text/plain; charset=utf-8", "lines": int64(3), "words": int64(8), "characters": int64(46),
			"top_words": words("apple", 2, "zebra", 2, "last", 1, "naïve", 1, "über", 1),
		},
		"\x89PNG\r\n\x1a\nrest": {
			"bytes": int64(12), "sha256": "f02a830cf03a1cf756c0461481db682bc9254a5a399f847494d33850c3ff7156",
			"media_type": "image/png", "lines": nil, "words": nil, "characters": nil, "top_words": nil,
		},
		"":                   {"media_type": "text/plain; charset=utf-8", "lines": int64(0), "top_words": words()},
		"<html>":             {"media_type": "text/html; charset=utf-8", "lines": int64(1)},
		"latin \xe9":         {"media_type": "text/plain", "lines": nil},
		"\xff\xfeh\x00i\x00": {"media_type": "text/plain; charset=utf-16le", "lines": nil},
		"abc abcd " + strings.Repeat("a", 65) + " " + strings.Repeat("Ä", 64): {
			"top_words": words("abcd", 1, strings.Repeat("ä", 64), 1),
		},
		"jjjj iiii hhhh gggg ffff eeee dddd cccc bbbb aaaa kkkk": {
			"top_words": words("aaaa", 1, "bbbb", 1, "cccc", 1, "dddd", 1, "eeee", 1,
				"ffff", 1, "gggg", 1, "hhhh", 1, "iiii", 1, "jjjj", 1),
		},
	} {
		got, err := document(t.Context(), t, map[string]any{"base64": []byte(content)}, orchestrator.Job{})
		if err != nil {
			t.Fatalf("%q: %v", content, err)
		}
		for name := range want {
			equal(t, got[name], want[name])
		}
	}
}

func TestDocument_BadInput(t *testing.T) {
	for _, input := range []string{
		`null`, `"text"`, `{}`, `{"text":"","base64":""}`, `{"text":7}`, `{"base64":"a"}`, `{"base64":"_-8="}`, ``,
	} {
		_, err := document(t.Context(), t, json.RawMessage(input), orchestrator.Job{})
		wantPermanent(t, err, orchestrator.CodeInvalidInput, "the input ")
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
func analyzeUntil(t *testing.T, text string, from json.RawMessage, n int) (map[string]any, *interrupted, error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reports := &interrupted{left: n, stop: stop, checkpoint: from}
	got, err := document(ctx, t, map[string]string{"text": text}, orchestrator.Job{Resume: from, Reporter: reports})
	return got, reports, err
}

const noSum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // SHA-256 of nothing

func TestDocument_Continues(t *testing.T) {
	long := strings.Repeat("Zebra ÄPFEL, über-naïve zebra\r\n\nx", 1000) + "äpfel" // no newline at the end
	for text, lines := range map[string]int{
		long: 2001, long + "\n": 2001, "one long line\nlast": 2, strings.Repeat("\n", 100): 100, "no part": 1, "": 0,
	} {
		want, all, err := analyzeUntil(t, text, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, want["lines"], int64(lines))
		equal(t, want["words"], int64(len(strings.Fields(text))))
		if text != "" {
			equal(t, all.progress, 1.0)
		}
		if all.resumable {
			t.Error("the last report has a checkpoint")
		}
		if reported := len(all.messages) >= 10 && all.checkpoint != nil; len(text) > 1000 && !reported {
			t.Errorf("%d reports of %d bytes, the last checkpoint is %s", len(all.messages), len(text), all.checkpoint)
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
			if newest := before.messages[n-1]; after.messages[0] != newest {
				t.Errorf("part %d: %q after %q", n, after.messages[0], newest)
			}
			equal(t, got, want)
		}
	}
}

func TestDocument_OtherCheckpoint(t *testing.T) {
	text := strings.Repeat("zebra\n", 100)
	_, before, _ := analyzeUntil(t, text, nil, 5)
	for _, other := range []string{
		string(before.checkpoint), `{"bytes":1,"sha256":"","seen":{}}`, `{"bytes":-1,"seen":{}}`,
		`{"sha256":"` + noSum + `"}`,
	} {
		got, _, err := analyzeUntil(t, "X"+text, json.RawMessage(other), 0)
		if err != nil {
			t.Errorf("from %s: %v", other, err)
		}
		equal(t, got["lines"], int64(100))
		equal(t, fmt.Sprint(got["top_words"]), "[map[count:99 word:zebra] map[count:1 word:xzebra]]")
	}
}

func TestDocument_LargeCheckpoint(t *testing.T) {
	var text strings.Builder // the first part alone has over 256 KiB of different words
	for i := range 60_000 {
		for range 10 {
			text.WriteString(strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprintf("%05d", i)))
		}
		text.WriteString("\n")
	}
	_, all, err := analyzeUntil(t, text.String(), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(all.messages) < 10 || all.checkpoint != nil {
		t.Errorf("%d reports, a checkpoint of %d bytes", len(all.messages), len(all.checkpoint))
	}
	equal(t, len(all.invalid), 0)
}
