package orchestrator

import (
	"net/http"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// plainText is what the content says of itself where it says nothing special.
const plainText = "text/plain; charset=utf-8"

// mediaTypes says what plain text is by its name's extension. It is our own,
// since the operating system's differs from machine to machine.
var mediaTypes = map[string]string{
	".css":    "text/css; charset=utf-8",
	".csv":    "text/csv; charset=utf-8",
	".htm":    "text/html; charset=utf-8",
	".html":   "text/html; charset=utf-8",
	".ics":    "text/calendar; charset=utf-8",
	".js":     "text/javascript; charset=utf-8",
	".json":   "application/json",
	".jsonl":  "application/x-ndjson",
	".md":     "text/markdown; charset=utf-8",
	".mjs":    "text/javascript; charset=utf-8",
	".ndjson": "application/x-ndjson",
	".svg":    "image/svg+xml",
	".toml":   "application/toml",
	".tsv":    "text/tab-separated-values; charset=utf-8",
	".xml":    "text/xml; charset=utf-8",
	".yaml":   "application/yaml",
	".yml":    "application/yaml",
}

// mediaType also says whether the content is text that can be counted in: it
// looks like text, and is UTF-8.
func mediaType(name string, content []byte) (mediaType string, text bool) {
	sniffed := http.DetectContentType(content)
	if !strings.HasPrefix(sniffed, "text/") {
		return sniffed, false
	}
	if !utf8.Valid(content) {
		// The sniffer claims UTF-8 for every text without a byte order mark.
		return strings.TrimSuffix(sniffed, "; charset=utf-8"), false
	}
	if sniffed == plainText {
		if byName, ok := mediaTypes[strings.ToLower(filepath.Ext(name))]; ok {
			return byName, true
		}
	}
	return sniffed, true
}
