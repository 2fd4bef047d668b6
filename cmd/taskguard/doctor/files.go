package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	run "google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"
)

// mostBytes is more than any of these files has.
const mostBytes = 1 << 20

// isFile reports whether a flag names something that exists.
func isFile(name string) bool {
	_, err := os.Stat(name)
	return name != "" && err == nil
}

// readFile reads a file of at most 1 MiB. What is not a regular file is not even
// opened, since a device may never end and a pipe never begin.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, named(name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, named(name, err)
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, mostBytes+1))
	switch {
	case err != nil:
		return nil, named(name, err)
	case len(data) > mostBytes:
		return nil, fmt.Errorf("%s: over 1 MiB", name)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, fmt.Errorf("%s: empty", name)
	}
	return data, nil
}

// named is an error of a file, which names it once.
func named(name string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", name, err)
}

// decode reads one document of YAML or JSON that has no field that v lacks.
func decode(data []byte, v any) error {
	documents := 0
	for part := range strings.SplitSeq("\n"+string(data), "\n---") {
		for line := range strings.Lines(part) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				documents++
				break
			}
		}
	}
	if documents > 1 {
		return errors.New("more than one document")
	}
	if err := yaml.UnmarshalStrict(data, v); err != nil {
		return errors.New(oneLine(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error unmarshaling JSON: "), "while decoding JSON: ")))
	}
	return nil
}

// oneLine is the beginning of a text that may have several lines.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > 300 {
		return string(r[:300]) + "…"
	}
	return text
}

// serviceFile reads a service as `gcloud run services replace` takes it, or as
// `gcloud run services describe --format=export` prints it.
func serviceFile(name string) (Service, error) {
	data, err := readFile(name)
	if err != nil {
		return Service{}, err
	}
	var s run.Service
	if err := decode(data, &s); err != nil {
		return Service{}, fmt.Errorf("%s is no Cloud Run service: %w", name, err)
	}
	env, settings, err := parseService(&s)
	if err != nil {
		return Service{}, fmt.Errorf("%s: %w", name, err)
	}
	return Service{
		Environment: read(env, name), Settings: read(settings, name),
		Callers: unread[[]string]("a service's file does not hold its IAM policy"),
	}, nil
}
