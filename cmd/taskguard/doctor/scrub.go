package doctor

import "regexp"

var (
	userinfo = regexp.MustCompile(`://[^/\s"'@]*@`)
	query    = regexp.MustCompile(`(https?://[^\s"'?]*)\?[^\s"']*`)
	token    = regexp.MustCompile(`\bya29\.[\w.-]+|\beyJ[\w-]+\.[\w-]+\.[\w-]*`)
)

// scrub is text without passwords and queries of URLs, and without tokens.
func scrub(text string) string {
	text = userinfo.ReplaceAllString(text, "://…@")
	text = query.ReplaceAllString(text, "$1?…")
	return token.ReplaceAllString(text, "…")
}
