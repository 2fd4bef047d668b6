package doclock

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"taskguard/lease/documentlock"
)

// roomOf is the id of the room that r's path names, percent-decoded exactly once.
// Echo's own parameter is decoded or not, as the path happened to be written.
func roomOf(r *http.Request) (string, error) {
	rest := strings.TrimPrefix(r.URL.EscapedPath(), "/api/documents/")
	segment, _, _ := strings.Cut(rest, "/")
	room, err := url.PathUnescape(segment)
	if err != nil {
		return "", requestError("the room's id is not percent-encoded")
	}
	return room, checkRoom(room)
}

// checkRoom refuses an id that a store cannot hold or that would name another
// record.
func checkRoom(room string) error {
	var problem string
	switch {
	case room == "":
		problem = "is empty"
	case len(room) > documentlock.MaxRoom:
		problem = fmt.Sprintf("has %d bytes, at most %d are possible", len(room), documentlock.MaxRoom)
	case !utf8.ValidString(room):
		problem = "is not UTF-8"
	case strings.ContainsRune(room, utf8.RuneError):
		problem = "has a replacement character (U+FFFD)"
	case strings.ContainsFunc(room, unicode.IsControl):
		problem = "has a control character"
	case strings.Contains(room, "/"):
		problem = "has a slash"
	case room == "." || room == "..":
		problem = "is a path"
	case len(room) >= 4 && strings.HasPrefix(room, "__") && strings.HasSuffix(room, "__"):
		problem = "is reserved: __…__"
	default:
		return nil
	}
	return requestError("the room's id " + problem)
}

// ClientHeader tells the clients of one session apart, as the tabs of a browser.
const ClientHeader = "X-Lock-Client"

var clientName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// clientOf is what the client adds to its session's owner: nothing, or a slash
// and its name.
func clientOf(r *http.Request) (string, error) {
	names := r.Header.Values(ClientHeader)
	switch {
	case len(names) == 0:
		return "", nil
	case len(names) > 1 || !clientName.MatchString(names[0]):
		return "", requestError(ClientHeader + " is not 1 to 64 of A-Z, a-z, 0-9, _ and -")
	}
	return "/" + names[0], nil
}
