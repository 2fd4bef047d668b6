package orchestrator

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"unicode"
	"unicode/utf8"
)

// Which words top_words holds. Lengths are in characters.
const (
	topWords        = 10
	shortestTopWord = 4
	longestTopWord  = 64 // longer ones are data, or a script without spaces
)

// textCounts is the part of the result for text.
type textCounts struct {
	Lines      int         `json:"lines"`
	Words      int         `json:"words"`      // separated by white space
	Characters int         `json:"characters"` // Unicode code points
	TopWords   []wordCount `json:"top_words"`  // the most frequent first, equals by alphabet
}

// wordCount is a word of only letters and their marks, in lower case.
type wordCount struct {
	Word  string `json:"word"`
	Count int    `json:"count"`
}

// textCounter counts a text of valid UTF-8, part by part. As JSON it is a checkpoint.
type textCounter struct {
	Bytes      int            `json:"bytes"`  // of the parts that were added
	SHA256     string         `json:"sha256"` // of these, when a checkpoint is made
	Lines      int            `json:"lines"`
	Words      int            `json:"words"`
	Characters int            `json:"characters"`
	Seen       map[string]int `json:"seen"` // the number of each word that may be a top word

	inWord bool
	run    []byte // the letters of the current word
}

// resumeText returns the counter of a checkpoint, if it is one of the beginning of
// content; else a new one.
func resumeText(checkpoint json.RawMessage, content []byte) *textCounter {
	c := &textCounter{}
	decoded := json.Unmarshal(checkpoint, c) == nil && c.Seen != nil
	if decoded && 0 <= c.Bytes && c.Bytes <= len(content) && c.SHA256 == sum(content[:c.Bytes]) {
		return c
	}
	return &textCounter{Seen: map[string]int{}}
}

// add counts the next part: whole lines, or the rest of the text.
func (c *textCounter) add(part []byte) {
	c.Bytes += len(part)
	c.Lines += countLines(part)
	for at := 0; at < len(part); {
		r, n := utf8.DecodeRune(part[at:])
		c.addRune(r, part[at:at+n])
		at += n
	}
	c.endRun()
}

// countLines counts lines, including a last one without a newline.
func countLines(text []byte) int {
	lines := bytes.Count(text, []byte("\n"))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		lines++
	}
	return lines
}

func (c *textCounter) addRune(r rune, encoded []byte) {
	c.Characters++
	wasInWord := c.inWord
	c.inWord = !unicode.IsSpace(r)
	if c.inWord && !wasInWord {
		c.Words++
	}

	if unicode.IsLetter(r) || unicode.IsMark(r) {
		c.run = append(c.run, encoded...)
	} else {
		c.endRun()
	}
}

func (c *textCounter) endRun() {
	if n := utf8.RuneCount(c.run); shortestTopWord <= n && n <= longestTopWord {
		c.Seen[string(bytes.ToLower(c.run))]++
	}
	c.run = c.run[:0]
}

func (c *textCounter) top() []wordCount {
	words := make([]wordCount, 0, len(c.Seen))
	for word, n := range c.Seen {
		words = append(words, wordCount{word, n})
	}
	slices.SortFunc(words, func(a, b wordCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Word, b.Word))
	})
	return words[:min(topWords, len(words))]
}
