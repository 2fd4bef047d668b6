package main

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
)

// screen is a terminal's size in cells; 0 is unknown.
type screen struct{ columns, rows int }

// screenOf asks w for its size, and else the environment for the columns.
func screenOf(w io.Writer, lookup func(string) (string, bool)) screen {
	if f, ok := fileOf(w); ok {
		if size := terminalSize(f); size.columns > 0 {
			return size
		}
	}
	text, _ := lookup("COLUMNS")
	if n, err := strconv.Atoi(text); err == nil && n > 0 {
		return screen{columns: n}
	}
	return screen{}
}

// fileOf is the file that w writes to.
func fileOf(w io.Writer) (*os.File, bool) {
	if o, ok := w.(*output); ok {
		w = o.to
	}
	f, ok := w.(*os.File)
	return f, ok
}

// wide are the runes that take two cells, roughly: too many rather than too few.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x1100, Hi: 0x115f, Stride: 1}, {Lo: 0x231a, Hi: 0x232a, Stride: 1}, {Lo: 0x23e9, Hi: 0x23f3, Stride: 1},
		{Lo: 0x25fd, Hi: 0x27bf, Stride: 1}, {Lo: 0x2b1b, Hi: 0x2b55, Stride: 1}, {Lo: 0x2e80, Hi: 0xa4cf, Stride: 1},
		{Lo: 0xa960, Hi: 0xa97c, Stride: 1}, {Lo: 0xac00, Hi: 0xd7a3, Stride: 1}, {Lo: 0xf900, Hi: 0xfaff, Stride: 1},
		{Lo: 0xfe10, Hi: 0xfe6f, Stride: 1}, {Lo: 0xff01, Hi: 0xff60, Stride: 1}, {Lo: 0xffe0, Hi: 0xffe6, Stride: 1},
	},
	R32: []unicode.Range32{{Lo: 0x16fe0, Hi: 0x18cff, Stride: 1}, {Lo: 0x1b000, Hi: 0x1b2ff, Stride: 1}, {Lo: 0x1f000, Hi: 0x3fffd, Stride: 1}},
}

// cells is how many columns a terminal needs for text, without control characters.
func cells(text string) int {
	n := 0
	for _, r := range text {
		n += cellsOf(r)
	}
	return n
}

func cellsOf(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wide, r):
		return 2
	}
	return 1
}

// cut shortens text to at most n cells, leaving its beginning.
func cut(text string, n int) string {
	if cells(text) <= n {
		return text
	}
	var b strings.Builder
	left := n - 1 // for the sign that something is missing
	for _, r := range text {
		if left -= cellsOf(r); left < 0 {
			break
		}
		b.WriteRune(r)
	}
	if n > 0 {
		b.WriteString("…")
	}
	return b.String()
}

// clip shortens text to at most n cells, leaving its end, which tells files apart.
func clip(text string, n int) string {
	if cells(text) <= n {
		return text
	}
	runes := []rune(text)
	from, left := len(runes), n-1
	for from > 0 && left >= cellsOf(runes[from-1]) {
		from--
		left -= cellsOf(runes[from])
	}
	for from < len(runes) && cellsOf(runes[from]) == 0 {
		from++ // its letter is gone
	}
	return "…" + string(runes[from:])
}

// squeeze shortens text to at most n cells, leaving its beginning and more of its end.
func squeeze(text string, n int) string {
	if cells(text) <= n {
		return text
	}
	begin := strings.TrimSuffix(cut(text, n/3+1), "…")
	return begin + clip(text, n-cells(begin))
}

// rows is how many rows lines take on a screen of that many columns, to which
// they may have been drawn when it had more.
func rows(lines []string, columns int) int {
	n := 0
	for _, line := range lines {
		n += max(1, (cells(line)+columns-1)/columns)
	}
	return n
}
