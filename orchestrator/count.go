package orchestrator

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"unicode"
	"unicode/utf8"
)

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
