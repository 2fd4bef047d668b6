package main

import (
	"bufio"
	"embed"
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

	"taskguard/orchestrator"
	"taskguard/worker/taskqueue"
)

// maxInput leaves 64 KiB of a document's 1 MiB for its result.
const maxInput = 1<<20 - 64<<10

// document is an analysis to be created.
type document struct {
	id    string
	name  string // of the file; the id, where there is none
	input any
}

// readDocuments reads each file once, however often it is named.
func readDocuments(files []string, read func(string) ([]byte, error)) ([]document, error) {
	var all []document
	for _, file := range files {
		content, err := read(file)
		var path *fs.PathError
		if errors.As(err, &path) {
			return nil, fmt.Errorf("%s: %w", visible(file), path.Err)
		}
		if err != nil {
			return nil, err // it names the file
		}
		d, err := newDocument(file, content)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(o document) bool { return o.id == d.id }) {
			all = append(all, d)
		}
	}
	return all, nil
}

// readFile reads a file that a document can hold. What is not a regular file is
// not even opened, since a device may never end and a pipe never begin; and a
// file that grows meanwhile is not followed.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", visible(path))
	}
	if info.Size() > maxInput {
		return nil, fmt.Errorf("%s: %d bytes, a document takes at most %d", visible(path), info.Size(), maxInput)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	content, err := io.ReadAll(io.LimitReader(f, maxInput+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxInput {
		return nil, fmt.Errorf("%s: more than %d bytes, which is what a document takes", visible(path), maxInput)
	}
	return content, nil
}

// newDocument is the input of builtin:document. Its id comes of name and
// content, so the same file is the same analysis.
func newDocument(file string, content []byte) (document, error) {
	name := filepath.ToSlash(filepath.Clean(file))
	form, value := "text", string(content)
	if !utf8.Valid(content) {
		form, value = "base64", base64.StdEncoding.EncodeToString(content)
	}
	if size := len(name) + len(value); size > maxInput {
		return document{}, fmt.Errorf("%s: %d bytes as %s, a document takes at most %d", visible(file), size, form, maxInput)
	}
	if !utf8.ValidString(name) {
		return document{}, fmt.Errorf("%q: its name is not UTF-8", file)
	}
	return document{
		id:    slug(name) + "-" + taskqueue.Name(name, form, value)[:16],
		name:  name,
		input: map[string]any{"name": name, form: value},
	}, nil
}

// slug is the readable beginning of an id.
func slug(name string) string {
	base := strings.ToLower(filepath.Base(name))
	words := strings.FieldsFunc(base, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	s := strings.Join(words, "-")
	if s == "" {
		s = "file"
	}
	return s[:min(len(s), 40)]
}

// inputDocument is an analysis of any JSON value.
func inputDocument(text, id string) (document, error) {
	if !json.Valid([]byte(text)) {
		return document{}, usageError("--input is not JSON")
	}
	input, err := orchestrator.Storable(json.RawMessage(text))
	var permanent *orchestrator.PermanentError
	if errors.As(err, &permanent) {
		return document{}, usageError("--input: " + ofInput(permanent))
	}
	if err != nil {
		return document{}, err
	}
	if id == "" {
		canonical, err := json.Marshal(input)
		if err != nil {
			return document{}, err
		}
		id = "input-" + taskqueue.Name(string(canonical))[:16]
	}
	return document{id: id, name: id, input: input}, nil
}

// ofInput is a refusal whose paths begin at the input, not at a result.
func ofInput(refused *orchestrator.PermanentError) string {
	message := "input" + strings.TrimPrefix(refused.Message, "result")
	if refused.Code == orchestrator.CodeResultTooLarge {
		message = strings.Replace(message, " at result", " at input", 1)
	}
	return message
}

// shown are files of this repository that the demo analyses.
var shown = []string{
	"README.md", "lease/rules.go", "lease/hold.go", "lease/store.go", "repo/analyses.go", "repo/transaction.go",
	"worker/guard.go", "worker/outcome.go", "orchestrator/storable.go", "go.mod",
}

const shownAtMost = 8

//go:embed samples
var samples embed.FS

// demoDocuments are files, or files of this repository where the working
// directory is in it, or a few texts of this program's own.
func demoDocuments(files []string) (docs []document, from string, err error) {
	if len(files) > 0 {
		docs, err = readDocuments(files, readFile)
		return docs, "the files named", err
	}
	if root, found := moduleRoot(); found {
		for _, file := range shown {
			if _, err := os.Stat(filepath.Join(root, file)); err == nil && len(files) < shownAtMost {
				files = append(files, file)
			}
		}
		docs, err = readDocuments(files, func(file string) ([]byte, error) { return readFile(filepath.Join(root, file)) })
		return docs, "files of this repository", err
	}
	entries, err := samples.ReadDir("samples")
	if err != nil {
		return nil, "", err
	}
	for _, e := range entries {
		files = append(files, e.Name())
	}
	docs, err = readDocuments(files, func(file string) ([]byte, error) { return fs.ReadFile(samples, "samples/"+file) })
	return docs, "texts of this program's own", err
}

// moduleRoot is the nearest directory upwards that holds this module.
func moduleRoot() (root string, found bool) {
	dir, err := os.Getwd()
	for err == nil {
		if declares(filepath.Join(dir, "go.mod"), "module taskguard") {
			return dir, true
		}
		up := filepath.Dir(dir)
		if up == dir {
			break
		}
		dir = up
	}
	return "", false
}

func declares(file, line string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) == line {
			return true
		}
	}
	return false
}
