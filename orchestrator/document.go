package orchestrator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// documentAnalyzer is builtin:document. It counts a text in parts of whole lines. After
// each part it reports a checkpoint, and before each part it checks the context.
type documentAnalyzer struct{}

const documentParts = 10 // a remainder may be one more part

// documentResult is the result of builtin:document. Only text has counts and words.
type documentResult struct {
	Bytes     int    `json:"bytes"`
	SHA256    string `json:"sha256"` // lower-case hex
	MediaType string `json:"media_type"`
	*textCounts
	TopWords []wordCount `json:"top_words,omitzero"`
}

// Analyze implements [Analyzer].
func (documentAnalyzer) Analyze(ctx context.Context, job Job) (Result, error) {
	content, err := documentContent(job.Input)
	if err != nil {
		return nil, err
	}
	r := documentResult{Bytes: len(content), SHA256: sum(content), MediaType: http.DetectContentType(content)}
	if !strings.HasPrefix(r.MediaType, "text/") || !utf8.Valid(content) {
		// DetectContentType reports UTF-8 for every text without a byte order mark.
		r.MediaType = strings.TrimSuffix(r.MediaType, "; charset=utf-8")
		return r, nil
	}

	counter := resumeText(job.Resume, content)
	job.reportText(counter, content)
	for counter.Bytes < len(content) {
		if err := contextError(ctx); err != nil {
			return nil, err
		}
		counter.add(nextPart(content[counter.Bytes:], len(content)/documentParts))
		job.reportText(counter, content)
	}
	r.textCounts, r.TopWords = &counter.textCounts, counter.topWords()
	return r, nil
}

// nextPart returns the beginning of rest: size bytes and the rest of their last line.
func nextPart(rest []byte, size int) []byte {
	if end := bytes.IndexByte(rest[min(size, len(rest)):], '\n'); end >= 0 {
		return rest[:size+end+1]
	}
	return rest
}

// reportText reports the counts so far. Within content it also reports a checkpoint.
func (j Job) reportText(c *textCounter, content []byte) {
	if j.Reporter == nil {
		return
	}
	progress := float64(c.Bytes) / float64(max(1, len(content)))
	message := fmt.Sprintf("line %d of %d", c.Lines, countLines(content))
	r := Report{Progress: &progress, Message: &message}

	if 0 < c.Bytes && c.Bytes < len(content) {
		c.SHA256 = sum(content[:c.Bytes])
		text, _ := json.Marshal(c)                                            // it has only numbers and strings
		r.Checkpoint, _ = newCheckpoint(&decoder{root: checkpointRoot}, text) // none if there are too many
	}
	j.Reporter.Report(r)
}

// sum returns the SHA-256 of b, in hex.
func sum(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// documentContent decodes the input: {"text"} or {"base64"}. It ignores other fields.
func documentContent(input json.RawMessage) ([]byte, error) {
	var in struct {
		Text   *string `json:"text"`
		Base64 []byte  `json:"base64"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, invalidInput("the input is not an object with text or base64: "+err.Error(), err)
	}
	switch {
	case in.Text != nil && in.Base64 == nil:
		return []byte(*in.Text), nil
	case in.Text == nil && in.Base64 != nil:
		return in.Base64, nil
	}
	return nil, invalidInput("the input needs one of text and base64", nil)
}

func invalidInput(problem string, err error) *PermanentError {
	return &PermanentError{Code: CodeInvalidInput, Message: problem, Err: err}
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
	Bytes  int    `json:"bytes"`  // how much of the text was counted
	SHA256 string `json:"sha256"` // the hash of that part; set for a checkpoint
	textCounts
	Seen map[string]int `json:"seen"` // how often each possible top word occurs
}

// resumeText returns the counter that checkpoint has, if it counted the beginning of
// content, or else a new one.
func resumeText(checkpoint json.RawMessage, content []byte) *textCounter {
	c := &textCounter{}
	decoded := json.Unmarshal(checkpoint, c) == nil && c.Seen != nil
	inContent := 0 <= c.Bytes && c.Bytes <= len(content)
	if decoded && inContent && c.SHA256 == sum(content[:c.Bytes]) {
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
