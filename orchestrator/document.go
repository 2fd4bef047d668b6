package orchestrator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// documentAnalyzer is builtin:document. It counts a text in parts of whole lines. After
// each part it reports a checkpoint, and before each part it checks the context.
type documentAnalyzer struct{}

const (
	documentParts = 10 // at most, besides one for a remainder
	// maxCheckpointWords limits the time that a checkpoint takes. A text with more different
	// words has no checkpoints.
	maxCheckpointWords = 8000
)

// documentResult is the result of builtin:document. Only text has counts.
type documentResult struct {
	Bytes     int    `json:"bytes"`
	SHA256    string `json:"sha256"` // lower-case hex
	MediaType string `json:"media_type"`
	*textCounts
}

// Analyze implements [Analyzer].
func (documentAnalyzer) Analyze(ctx context.Context, job Job) (Result, error) {
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	name, content, err := documentContent(job.Input)
	if err != nil {
		return nil, err
	}

	contentType, isText := mediaType(name, content)
	r := documentResult{Bytes: len(content), SHA256: sum(content), MediaType: contentType}
	if !isText {
		return r, nil
	}

	counter, suffix := resumeText(job.Resume, content), ""
	if counter.Lines > 0 {
		suffix = fmt.Sprintf(", continued from line %d", counter.Lines)
	}
	job.reportText(counter, content, suffix)
	for counter.Bytes < len(content) {
		if err := contextError(ctx); err != nil {
			return nil, err
		}
		counter.add(nextPart(content[counter.Bytes:], len(content)/documentParts))
		job.reportText(counter, content, suffix)
	}
	r.textCounts = counter.counts()
	return r, nil
}

// nextPart returns the beginning of rest: size bytes and the rest of their last line.
func nextPart(rest []byte, size int) []byte {
	if end := bytes.IndexByte(rest[min(size, len(rest)):], '\n'); end >= 0 {
		return rest[:size+end+1]
	}
	return rest
}

// reportText reports the counts so far. Within content it also reports a checkpoint.
func (j Job) reportText(c *textCounter, content []byte, suffix string) {
	if j.Reporter == nil {
		return
	}
	progress := float64(c.Bytes) / float64(max(1, len(content)))
	message := fmt.Sprintf("line %d of %d%s", c.Lines, countLines(content), suffix)
	r := Report{Progress: &progress, Message: &message}

	if 0 < c.Bytes && c.Bytes < len(content) && len(c.Seen) <= maxCheckpointWords {
		c.SHA256 = sum(content[:c.Bytes])
		text, _ := json.Marshal(c) // it has only numbers and strings
		r.Checkpoint, _ = newCheckpoint(text)
	}
	j.Reporter.Report(r)
}

// sum returns the SHA-256 of b, in hex.
func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// documentContent decodes the input: {"name", "text"} or {"name", "base64"}. The
// name is optional; other fields are ignored.
func documentContent(input json.RawMessage) (name string, content []byte, err error) {
	var in struct {
		Name   string  `json:"name"`
		Text   *string `json:"text"`
		Base64 *string `json:"base64"`
	}
	if !bytes.HasPrefix(bytes.TrimSpace(input), []byte("{")) {
		return "", nil, invalidInput("the input is not an object", nil)
	}

	if err := json.Unmarshal(input, &in); err != nil {
		if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) && mismatch.Field != "" {
			return "", nil, invalidInput("the input's "+mismatch.Field+" is not a string", err)
		}
		return "", nil, invalidInput("the input is not JSON", err)
	}

	switch {
	case in.Text != nil && in.Base64 != nil:
		return "", nil, invalidInput("the input has both text and base64", nil)
	case in.Text != nil:
		return in.Name, []byte(*in.Text), nil
	case in.Base64 == nil:
		return "", nil, invalidInput("the input has neither text nor base64", nil)
	}

	content, err = base64.StdEncoding.DecodeString(*in.Base64)
	if err != nil {
		return "", nil, invalidInput("the input's base64 is broken: "+err.Error(), err)
	}
	return in.Name, content, nil
}

func invalidInput(problem string, err error) *PermanentError {
	return &PermanentError{Code: CodeInvalidInput, Message: problem, Err: err}
}

// plainText is the media type of text without a known form.
const plainText = "text/plain; charset=utf-8"

// mediaTypes has the media type of plain text by the extension of its name. Package
// mime is not used, because its table depends on the machine.
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

// mediaType returns the media type of content, and whether it is UTF-8 text.
func mediaType(name string, content []byte) (mediaType string, isText bool) {
	sniffed := http.DetectContentType(content)
	if !strings.HasPrefix(sniffed, "text/") {
		return sniffed, false
	}
	if !utf8.Valid(content) {
		// DetectContentType reports UTF-8 for every text without a byte order mark.
		return strings.TrimSuffix(sniffed, "; charset=utf-8"), false
	}
	if sniffed == plainText {
		if byName, ok := mediaTypes[strings.ToLower(filepath.Ext(name))]; ok {
			return byName, true
		}
	}
	return sniffed, true
}
