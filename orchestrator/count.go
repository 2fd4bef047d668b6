package orchestrator

import (
	"bytes"
	"cmp"
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
	Lines      int         `json:"lines"`      // including a last one without a newline
	Words      int         `json:"words"`      // separated by white space
	Characters int         `json:"characters"` // Unicode code points
	TopWords   []wordCount `json:"top_words"`  // the most frequent first, equals by alphabet
}

// wordCount is a word of only letters and their marks, in lower case.
type wordCount struct {
	Word  string `json:"word"`
	Count int    `json:"count"`
}

// countText counts in valid UTF-8.
func countText(content []byte) *textCounts {
	c := wordCounter{seen: map[string]int{}}
	for at := 0; at < len(content); {
		r, n := utf8.DecodeRune(content[at:])
		c.add(r, content[at:at+n])
		at += n
	}
	c.endRun()
	lines := bytes.Count(content, []byte("\n"))
	if len(content) > 0 && content[len(content)-1] != '\n' {
		lines++
	}
	return &textCounts{Lines: lines, Words: c.words, Characters: c.characters, TopWords: c.top()}
}

type wordCounter struct {
	characters, words int
	inWord            bool
	run               []byte // the letters of the current word
	seen              map[string]int
}

func (c *wordCounter) add(r rune, encoded []byte) {
	c.characters++
	wasInWord := c.inWord
	c.inWord = !unicode.IsSpace(r)
	if c.inWord && !wasInWord {
		c.words++
	}
	if unicode.IsLetter(r) || unicode.IsMark(r) {
		c.run = append(c.run, encoded...)
	} else {
		c.endRun()
	}
}

func (c *wordCounter) endRun() {
	if n := utf8.RuneCount(c.run); shortestTopWord <= n && n <= longestTopWord {
		c.seen[string(bytes.ToLower(c.run))]++
	}
	c.run = c.run[:0]
}

func (c *wordCounter) top() []wordCount {
	words := make([]wordCount, 0, len(c.seen))
	for word, n := range c.seen {
		words = append(words, wordCount{word, n})
	}
	slices.SortFunc(words, func(a, b wordCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Word, b.Word))
	})
	return words[:min(topWords, len(words))]
}
