package orchestrator

import (
	"math/big"
	"strconv"
	"strings"
)

// number reads a JSON number.
func number(p path, text string) (any, error) {
	integral := !strings.ContainsAny(text, ".eE")
	if integral {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, refusal(p, "is a number beyond float64", err)
	}
	if integral && !keepsDigits(f, text) {
		return nil, refusal(p, "is an integer beyond int64 that float64 would change", nil)
	}
	return f, nil
}

// keepsDigits reports whether f is the integer in text, or text is how f is
// written in the fewest digits: 123456789012345680000 stands for a float64
// that is not exactly that, but is what wrote it.
func keepsDigits(f float64, text string) bool {
	if strconv.FormatFloat(f, 'f', -1, 64) == text {
		return true
	}
	want, ok := new(big.Int).SetString(text, 10)
	got, _ := big.NewFloat(f).Int(nil)
	return ok && got.Cmp(want) == 0
}
