package console

import "html/template"

// For the tests of formats.
var Number, Shorten = number, shorten

// Break leaves only the template of an error's page.
func (s *Server) Break() {
	s.html = template.Must(template.New("").Parse(`{{define "problem"}}{{.Message}}{{end}}`))
}
