package orchestrator

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxOutputBytes is the largest output of an exec: program and the largest answer
	// of an HTTP endpoint. It is larger than a result, because JSON with escapes and
	// indentation is several times as long as the value.
	MaxOutputBytes = 8 << 20

	readBytes    = 32 << 10 // the size of one read
	messageBytes = 2 << 10  // the length of an analyzer's message of its failure
)

// output collects the output of a program or an endpoint.
type output struct {
	text     []byte
	tooLarge bool
	wantJSON bool
}

// add appends b. It reports false if the output has become too large.
func (o *output) add(b []byte) bool {
	if len(o.text)+len(b) > MaxOutputBytes {
		o.text, o.tooLarge = nil, true
	}
	if !o.tooLarge {
		o.text = append(o.text, b...)
	}
	return !o.tooLarge
}

// result returns the output as a result: JSON if all of it is one JSON value, nil if it is
// only white space, else a string without one newline at its end. It warns of a string that
// begins like JSON. If JSON is required, other output is a [FailureError]; output that is not
// UTF-8 is a [PermanentError].
func (o *output) result(job Job) (Result, error) {
	switch {
	case o.tooLarge:
		return nil, tooMuchOutput()
	case o.wantJSON && !json.Valid(o.text):
		return nil, &FailureError{Code: CodeInvalidOutput, Reason: o.notJSON()}
	case !utf8.Valid(o.text):
		return nil, notUTF8()
	case json.Valid(o.text):
		return json.RawMessage(o.text), nil
	case len(bytes.TrimSpace(o.text)) == 0:
		return nil, nil
	}

	if start := bytes.TrimSpace(o.text)[0]; start == '{' || start == '[' {
		job.warn(o.notJSON() + "; it begins like JSON, and is stored as a string")
	}
	text, terminated := bytes.CutSuffix(o.text, []byte("\n"))
	if terminated {
		text = bytes.TrimSuffix(text, []byte("\r"))
	}
	return string(text), nil
}

func tooMuchOutput() error {
	message := fmt.Sprintf("result has more than %d bytes of output", MaxOutputBytes)
	return &PermanentError{Code: CodeResultTooLarge, Message: message}
}

func notUTF8() error {
	return &PermanentError{Code: CodeResultInvalid, Message: "result is not valid UTF-8"}
}

// notJSON returns an error message with the position of the syntax error. Unlike the
// decoder's message, it does not quote the output.
func (o *output) notJSON() string {
	if len(o.text) == 0 {
		return "the output is not JSON: it is empty"
	}
	var syntax *json.SyntaxError
	_ = errors.As(json.Unmarshal(o.text, new(json.RawMessage)), &syntax)
	return fmt.Sprintf("the output is not JSON: parsing stopped after %d of %d bytes", syntax.Offset, len(o.text))
}

// cutHead returns the longest beginning of s of at most n bytes that splits no rune.
func cutHead(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// cutTail returns the longest end of s of at most n bytes that splits no rune.
func cutTail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for s = s[len(s)-n:]; s != "" && !utf8.RuneStart(s[0]); {
		s = s[1:]
	}
	return s
}

// legible returns s as a message: trimmed and valid UTF-8.
func legible(s string) string {
	return strings.TrimSpace(strings.ToValidUTF8(s, "\uFFFD"))
}

// Limits of top_words. Lengths are in characters.
const (
	mostTopWords    = 10
	shortestTopWord = 4
	longestTopWord  = 64 // longer ones are data, or a script without spaces
)

// textCounts is the part of the result for text that is counted in passing.
type textCounts struct {
	Lines      int `json:"lines"`
	Words      int `json:"words"`      // separated by white space
	Characters int `json:"characters"` // Unicode code points
}

// wordCount is a word of only letters and their marks, in lower case.
type wordCount struct {
	Word  string `json:"word"`
	Count int    `json:"count"`
}

// textCounter counts a text of valid UTF-8, part by part. As JSON it is a checkpoint.
type textCounter struct {
	Bytes  int    `json:"bytes"`  // of the parts that were added
	SHA256 string `json:"sha256"` // of these parts; set for a checkpoint
	textCounts
	Seen map[string]int `json:"seen"` // how often each possible top word occurs
}

// resumeText returns the counter that checkpoint has, if it counted the beginning of
// content, or else a new one.
func resumeText(checkpoint json.RawMessage, content []byte) *textCounter {
	c := &textCounter{}
	decoded := json.Unmarshal(checkpoint, c) == nil && c.Seen != nil
	fits := 0 <= c.Bytes && c.Bytes <= len(content)
	if decoded && fits && c.SHA256 == sum(content[:c.Bytes]) {
		return c
	}
	return &textCounter{Seen: map[string]int{}}
}

// add counts the next part: whole lines, or the rest of the text.
func (c *textCounter) add(part []byte) {
	c.Bytes += len(part)
	c.Lines += countLines(part)
	c.Words += len(bytes.Fields(part))
	c.Characters += utf8.RuneCount(part)

	notInWord := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsMark(r) }
	for word := range bytes.FieldsFuncSeq(part, notInWord) {
		if n := utf8.RuneCount(word); shortestTopWord <= n && n <= longestTopWord {
			c.Seen[string(bytes.ToLower(word))]++
		}
	}
}

// countLines counts lines, including a last one without a newline.
func countLines(text []byte) int {
	lines := bytes.Count(text, []byte("\n"))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		lines++
	}
	return lines
}

// topWords returns the most frequent words first, equals by alphabet.
func (c *textCounter) topWords() []wordCount {
	words := make([]wordCount, 0, len(c.Seen))
	for word, n := range c.Seen {
		words = append(words, wordCount{word, n})
	}
	slices.SortFunc(words, func(a, b wordCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Word, b.Word))
	})
	return words[:min(mostTopWords, len(words))]
}
