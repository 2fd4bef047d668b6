package operate

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/internal/taskqueue"
	"taskguard/internal/text"
	"taskguard/orchestrator"
)

// maxInput leaves 64 KiB of a document's 1 MiB for its result.
const maxInput = 1<<20 - 64<<10

var errTooLarge = fmt.Errorf(
	"larger than %d bytes, which a document cannot hold: put it in Cloud Storage and submit its name", maxInput)

// Document is an analysis to be created.
type Document struct {
	ID    string
	Name  string // the file's name, or else the id
	Input any
}

// ReadDocuments makes a document of each file. A file that is named twice is one
// document.
func ReadDocuments(files []string, read func(string) ([]byte, error)) ([]Document, error) {
	var all []Document
	for _, file := range files {
		content, err := read(file)
		var path *fs.PathError
		if errors.As(err, &path) {
			return nil, fmt.Errorf("%s: %w", printable.Line(file), path.Err)
		}
		if err != nil {
			return nil, err // it names the file
		}
		d, err := newDocument(file, content)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(o Document) bool { return o.ID == d.ID }) {
			all = append(all, d)
		}
	}
	return all, nil
}

// ReadFile reads a regular file. It opens no other file, as reading a device may never end and
// opening a pipe may block. It stops reading at the first byte that no document can hold; then
// newDocument returns an error.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", printable.Line(path))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	return io.ReadAll(io.LimitReader(f, maxInput+1))
}

// readInput returns the JSON that the value of --input names.
func readInput(stdin io.Reader, value string) (string, error) {
	path, isFile := strings.CutPrefix(value, "@")
	if !isFile && value != "-" {
		return value, nil
	}
	read := func() ([]byte, error) { return io.ReadAll(io.LimitReader(stdin, maxInput+1)) }
	if isFile {
		read = func() ([]byte, error) { return ReadFile(path) }
	}
	text, err := read()
	if err == nil && len(text) > maxInput {
		err = errTooLarge
	}
	return string(text), err
}

// newDocument returns the input of builtin:document. The id is made from name and
// content, so the same file is the same analysis.
func newDocument(file string, content []byte) (Document, error) {
	name := filepath.ToSlash(filepath.Clean(file))
	form, value := "text", string(content)
	if !utf8.Valid(content) {
		form, value = "base64", base64.StdEncoding.EncodeToString(content)
	}
	switch {
	case len(name)+len(value) > maxInput:
		return Document{}, fmt.Errorf("%s: as %s, %w", printable.Line(file), form, errTooLarge)
	case !utf8.ValidString(name):
		return Document{}, fmt.Errorf("%q: its name is not UTF-8", file)
	}
	return Document{
		ID:    slug(name) + "-" + taskqueue.Name(name, form, value)[:16],
		Name:  name,
		Input: map[string]any{"name": name, form: value},
	}, nil
}

// slug is the readable beginning of an id.
func slug(name string) string {
	base := strings.ToLower(filepath.Base(name))
	words := strings.FieldsFunc(base, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	return text.Head(cmp.Or(strings.Join(words, "-"), "file"), 40)
}

// inputDocument returns an analysis of any JSON value.
func inputDocument(text, id string) (Document, error) {
	if !json.Valid([]byte(text)) {
		return Document{}, cli.UsageError("it is not JSON")
	}
	input, err := orchestrator.StorableInput(json.RawMessage(text))
	var permanent *orchestrator.PermanentError
	if errors.As(err, &permanent) {
		return Document{}, cli.UsageError(permanent.Message)
	}

	canonical, err := json.Marshal(input)
	if err != nil {
		return Document{}, err
	}
	id = cmp.Or(id, "input-"+taskqueue.Name(string(canonical))[:16])
	return Document{ID: id, Name: id, Input: json.RawMessage(text)}, nil
}
