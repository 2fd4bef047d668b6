package doctor

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// isFile reports whether a flag names an existing file.
func isFile(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// decodeFile reads a file of YAML or JSON that has no field that v lacks. kind names
// its content in errors.
func decodeFile(name, kind string, v any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(data, v); err != nil {
		return fmt.Errorf("%s is not %s: %s", name, kind, oneLine(err.Error()))
	}
	return nil
}

// oneLine returns a text that may have several lines as one.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

var (
	userinfo = regexp.MustCompile(`://[^/\s"'@]*@`)
	query    = regexp.MustCompile(`(https?://[^\s"'?]*)\?[^\s"']*`)
)

// scrub returns text without the passwords and queries of URLs.
func scrub(text string) string {
	return query.ReplaceAllString(userinfo.ReplaceAllString(text, "://…@"), "$1?…")
}
