package doclock

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"taskguard/lease/documentlock"
)

// roomOf is the id of the room that r's path names, percent-decoded exactly once.
// Echo's own parameter is decoded or not, as the path happened to be written.
func roomOf(r *http.Request) (string, error) {
	rest := strings.TrimPrefix(r.URL.EscapedPath(), "/api/documents/")
	segment, _, _ := strings.Cut(rest, "/")
	room, err := url.PathUnescape(segment)
	if err != nil {
		return "", requestError("the room id is not percent-encoded")
	}
	return room, documentlock.CheckRoom(room)
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
