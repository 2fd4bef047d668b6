package doctor

import (
	"regexp"
	"slices"
)

var (
	userinfo = regexp.MustCompile(`://[^/\s"'@]*@`)
	query    = regexp.MustCompile(`(https?://[^\s"'?]*)\?[^\s"']*`)
	token    = regexp.MustCompile(`\bya29\.[\w.-]+|\beyJ[\w-]+\.[\w-]+\.[\w-]*`)
)

// placeholders are what stands in the shipped files for what is the user's own.
var placeholders = []struct {
	name string
	in   *regexp.Regexp
}{
	{"my-project", regexp.MustCompile(`(^|[^a-z0-9-])my-project($|[^a-z0-9-])`)},
	{"123456789012", regexp.MustCompile(`\b123456789012\b`)},
	{"a digest of zeros", regexp.MustCompile(`@sha256:0{64}$`)},
}

// Placeholders are those of the shipped files that are still in what was read, but
// for what Google answered.
func (f Facts) Placeholders() (names []string) {
	var read []string
	for _, s := range []*Service{&f.Worker, &f.Doclock} {
		if s.Environment.Live || s.Settings.Live {
			continue
		}
		read = append(append(read, s.Settings.Value.Image, s.Settings.Value.Account), s.Settings.Value.URLs...)
		for _, v := range s.Environment.Value {
			read = append(read, v.Value)
		}
	}
	for _, p := range placeholders {
		if slices.ContainsFunc(read, p.in.MatchString) {
			names = append(names, p.name)
		}
	}
	return names
}

// scrub is text without passwords and queries of URLs, and without tokens.
func scrub(text string) string {
	text = userinfo.ReplaceAllString(text, "://…@")
	text = query.ReplaceAllString(text, "$1?…")
	return token.ReplaceAllString(text, "…")
}
