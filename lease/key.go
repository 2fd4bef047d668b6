package lease

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CheckKey returns ErrInvalidKey for a key of more than limit bytes, and for one that
// is not a plain path segment: UTF-8 without slashes and control characters, and not
// reserved as __…__. Some stores cannot hold such a key, or read it as the path
// of another record. what is the key's kind in the error, which does not contain the key.
func CheckKey(what, key string, limit int) error {
	var problem string
	switch {
	case key == "":
		problem = "is empty"
	case len(key) > limit:
		problem = fmt.Sprintf("has %d bytes, at most %d are possible", len(key), limit)
	case !utf8.ValidString(key):
		problem = "is not UTF-8"
	case key == "." || key == "..":
		problem = "is a path"
	case strings.Contains(key, "/"):
		problem = "has a slash"
	case len(key) >= 4 && strings.HasPrefix(key, "__") && strings.HasSuffix(key, "__"):
		problem = "is reserved: __…__"
	case strings.ContainsRune(key, utf8.RuneError): // JSON decodes half a surrogate pair to it
		problem = "has a replacement character (U+FFFD)"
	case strings.ContainsFunc(key, unicode.IsControl):
		problem = "has a control character"
	default:
		return nil
	}
	return fmt.Errorf("%w: the %s id %s", ErrInvalidKey, what, problem)
}
