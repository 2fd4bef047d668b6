//go:build unix

package lease

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxFileName leaves room for the endings within the 255 bytes that file
// systems allow.
const maxFileName = 200

// fileName is the name of a key's file: one path element, no two keys having
// the same, also where upper and lower case are. Lower case letters, digits, -
// and _ stand for themselves, any other byte as %xx. A key that is too long for
// that is cut and given its hash, after %%, which no other name contains.
func fileName(key string) (string, error) {
	if key == "" || !utf8.ValidString(key) {
		return "", fmt.Errorf("%w: %q is empty or not UTF-8", ErrInvalidKey, key)
	}
	var b strings.Builder
	for _, c := range []byte(key) {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	name := b.String()
	if len(name) > maxFileName {
		name = fmt.Sprintf("%s%%%%%x", strings.TrimRight(name[:100], "%"), sha256.Sum256([]byte(key)))
	}
	return name + ".json", nil
}
